#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace inlay::io {

// The path, or the nearest folder above it that is there.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

// Bytes that may be written where the folder is, or will be; nothing where that cannot be said.
std::optional<std::uint64_t> free_space(const std::filesystem::path& folder);

}  // namespace inlay::io
