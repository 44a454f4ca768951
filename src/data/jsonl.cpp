#include "data/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/arena.h"
#include "core/error.h"
#include "data/jsonl_line.h"

namespace inlay::data {
namespace {

// Lines of a file of any size, through one buffer that is as large as the longest line.
class LineReader {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;
  static constexpr std::size_t max_line_bytes = std::size_t{1} << 30;

  explicit LineReader(const std::filesystem::path& path) : path_(path.string()) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0 && errno == ENOENT) user_error("{}: no such file", path_);
    if (descriptor_ < 0) user_error("{}: cannot be opened: {}", path_, std::generic_category().message(errno));
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(descriptor_);
      user_error("{}: is a folder, expected a JSONL file", path_);
    }
  }
  ~LineReader() { ::close(descriptor_); }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end; valid until the next call.
  std::optional<std::string_view> next() {
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

  std::size_t line() const { return line_; }  // from 1
  std::uint64_t bytes_read() const { return bytes_read_; }
  const std::string& path() const { return path_; }

 private:
  // Makes room behind what is held and reads there; false at the end of the file.
  bool fill() {
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

  std::string path_;
  int descriptor_ = -1;
  std::vector<char> buffer_ = std::vector<char>(chunk_bytes);
  std::size_t begin_ = 0, end_ = 0, line_ = 0;
  std::uint64_t bytes_read_ = 0;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

Document make_document(const LineArrays& arrays, const std::string& path, std::size_t line, std::int64_t vocab_size) {
  const auto& ids = arrays.input_ids.values;
  const auto& labels = arrays.labels.values;
  const auto fail = [&](std::string_view key, const std::string& message) {
    user_error("{}:{}: {}: {}", path, line, key, message);
  };
  if (!arrays.input_ids.present) fail("input_ids", "missing, expected an array of token ids");
  if (ids.empty()) fail("input_ids", "is empty, expected at least one token");
  const auto outside = [&](std::int64_t id) { return id < 0 || id >= vocab_size; };
  if (const auto bad = std::ranges::find_if(ids, outside); bad != ids.end()) {
    fail(fmt::format("input_ids[{}]", bad - ids.begin()),
         fmt::format("token id {} is outside the model's vocabulary, 0 to {}", *bad, vocab_size - 1));
  }

  Document document;
  document.input_ids.assign(ids.begin(), ids.end());
  if (arrays.labels.present) {
    if (labels.size() != ids.size()) {
      fail("labels", fmt::format("has {} entries for {} input_ids", labels.size(), ids.size()));
    }
    const auto wrong = [&](std::int64_t label) { return label != ignore_label && outside(label); };
    if (const auto bad = std::ranges::find_if(labels, wrong); bad != labels.end()) {
      fail(fmt::format("labels[{}]", bad - labels.begin()),
           fmt::format("label {} is neither {} nor in the model's vocabulary, 0 to {}", *bad, ignore_label,
                       vocab_size - 1));
    }
    document.labels.assign(labels.begin(), labels.end());
  } else {
    document.labels = document.input_ids;
  }
  document.labels.front() = ignore_label;  // nothing precedes it that could predict it

  if (arrays.attention_mask.present) {
    const auto& mask = arrays.attention_mask.values;
    if (mask.size() != ids.size()) {
      fail("attention_mask", fmt::format("has {} entries for {} input_ids", mask.size(), ids.size()));
    }
    if (const auto bad = std::ranges::find_if(mask, [](std::int64_t m) { return m != 1; }); bad != mask.end()) {
      fail(fmt::format("attention_mask[{}]", bad - mask.begin()),
           fmt::format("is {}: documents must not be padded, leave the padding out of input_ids", *bad));
    }
  }
  return document;
}

}  // namespace

std::vector<Document> read_jsonl(const std::filesystem::path& path, std::int64_t vocab_size, const Progress& progress) {
  INLAY_ASSERT(vocab_size > 0, "a vocabulary of {} tokens", vocab_size);
  LineReader reader(path);
  std::vector<Document> documents;
  LineArrays arrays;
  std::uint64_t reported = 0;
  while (const auto line = reader.next()) {
    if (is_blank(*line)) continue;
    if (!parse_line_quickly(*line, arrays)) {
      parse_line_fully(*line, fmt::format("{}:{}", reader.path(), reader.line()), arrays);
    }
    documents.push_back(make_document(arrays, reader.path(), reader.line(), vocab_size));
    if (progress && reader.bytes_read() != reported) {
      reported = reader.bytes_read();
      progress(reported);
    }
  }
  if (documents.empty()) user_error("{}: holds no documents", reader.path());
  return documents;
}

}  // namespace inlay::data
