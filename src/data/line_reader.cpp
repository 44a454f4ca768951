#include "data/line_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/arena.h"
#include "core/error.h"

namespace inlay::data {

LineReader::LineReader(const std::filesystem::path& path) : path_(path.string()) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0 && errno == ENOENT) user_error("{}: no such file", path_);
  if (descriptor_ < 0) user_error("{}: cannot be opened: {}", path_, std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
    ::close(descriptor_);
    user_error("{}: is a folder, expected a JSONL file", path_);
  }
}

LineReader::~LineReader() { ::close(descriptor_); }

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
  for (;;) {
    const ssize_t got = ::read(descriptor_, buffer_.data() + end_, buffer_.size() - end_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) user_error("{}: cannot be read: {}", path_, std::generic_category().message(errno));
    end_ += static_cast<std::size_t>(got);
    bytes_read_ += static_cast<std::uint64_t>(got);
    return got > 0;
  }
}

}  // namespace inlay::data
