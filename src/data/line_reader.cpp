#include "data/line_reader.h"

#include <algorithm>
#include <cstring>

#include "core/arena.h"
#include "core/error.h"

namespace inlay::data {

LineReader::LineReader(const std::filesystem::path& path)
    : path_(path.string()), source_(open_source(path)), compressed_(is_compressed(path)) {}

std::optional<std::string_view> LineReader::next() {
  for (;;) {
    const auto line = next_of_any_kind();
    if (!line || line->find_first_not_of(" \t\r") != line->npos) return line;
  }
}

std::optional<std::string_view> LineReader::next_of_any_kind() {
  ++line_;
  std::size_t searched = 0;
  for (;;) {
    const char* begin = buffer_.data() + begin_;
    const std::size_t held = end_ - begin_;
    if (const void* found = std::memchr(begin + searched, '\n', held - searched)) {
      const auto length = static_cast<std::size_t>(static_cast<const char*>(found) - begin);
      begin_ += length + 1;
      return std::string_view(begin, length);
    }
    searched = held;
    if (!fill()) {
      if (held == 0) return std::nullopt;
      begin_ = end_;
      return std::string_view(buffer_.data() + end_ - held, held);  // the last line need not be ended
    }
  }
}

bool LineReader::fill() {
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ > max_line_bytes) user_error("{}:{}: a line of more than {}", path_, line_, format_bytes(max_line_bytes));
  if (buffer_.size() - end_ < chunk_bytes) buffer_.resize(std::max(2 * buffer_.size(), end_ + chunk_bytes));
  const std::size_t got = source_->read(std::span(buffer_).subspan(end_));
  end_ += got;
  return got > 0;
}

}  // namespace inlay::data
