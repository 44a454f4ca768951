#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inlay {

// The candidate that a mistyped word most likely meant, or "" where none is near.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> texts, std::string_view separator);
// Whether the whole text matches the pattern, in which * stands for anything, nothing included.
bool matches(std::string_view text, std::string_view pattern);

// A word as a shell takes it for one: in quotes where it has more than letters, digits and what paths have.
std::string shell_quoted(std::string_view word);

// "1h 02m", "3m 20s", "12s".
std::string format_duration(double seconds);
// For messages: what is not a finite number is "nan" or "inf", whatever its sign bit says.
std::string format_value(double value);
// With so many decimals; what is zero in all of them has no sign.
std::string format_decimals(double value, int decimals);
// "12,345,678".
std::string format_count(std::int64_t count);
// "1 row", "2,000 rows", "2 batches".
std::string counted(std::int64_t count, std::string_view what);
// "1 document was", "2,000 documents were".
std::string counted(std::int64_t count, std::string_view one, std::string_view more);

}  // namespace inlay
