#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace inlay {

// The candidate that a mistyped word most likely meant, or "" where none is near.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

// "1h 02m", "3m 20s", "12s".
std::string format_duration(double seconds);
// "12,345,678".
std::string format_count(std::int64_t count);

}  // namespace inlay
