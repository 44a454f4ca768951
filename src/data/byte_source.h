#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace inlay::data {

// The bytes of a file from first to last; those of .gz and .zst files as they were before they were compressed. What
// cannot be opened, read or decompressed is a UserError that names the file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // As many as there are now, up to the size; 0 at the end.
  virtual std::size_t read(std::span<char> to) = 0;
  // Bytes of the file that were read so far.
  virtual std::uint64_t position() const = 0;
};

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path);

// The ending that tells what a file holds: ".jsonl" of rows.jsonl.zst.
std::string content_extension(const std::filesystem::path& path);
bool is_compressed(const std::filesystem::path& path);

// All of a file's bytes.
std::string read_all(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace inlay::data
