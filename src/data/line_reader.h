#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace inlay::data {

// Lines of a file of any size, through one buffer that is as large as the longest line. What cannot be opened or read
// is a UserError that names the file.
class LineReader {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;
  static constexpr std::size_t max_line_bytes = std::size_t{1} << 30;

  explicit LineReader(const std::filesystem::path& path);

  // The next line that is not blank, without its end; valid until the next call.
  std::optional<std::string_view> next();

  std::size_t line() const { return line_; }  // from 1
  // Bytes of the file up to the end of the line; of a compressed one, about.
  std::uint64_t position() const { return source_->position() - (compressed_ ? 0 : end_ - begin_); }
  const std::string& path() const { return path_; }

 private:
  std::optional<std::string_view> next_of_any_kind();
  // Makes room behind what is held and reads there; false at the end of the file.
  bool fill();

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  bool compressed_;
  std::vector<char> buffer_ = std::vector<char>(chunk_bytes);
  std::size_t begin_ = 0, end_ = 0, line_ = 0;
};

}  // namespace inlay::data
