#include "data/csv_rows.h"

#include <set>

#include "core/error.h"
#include "core/text.h"
#include "core/utf8.h"
#include "data/byte_source.h"

namespace inlay::data {

namespace {

constexpr std::size_t max_record_bytes = std::size_t{1} << 30;

class CsvRows final : public RowBlocks {
 public:
  CsvRows(const std::filesystem::path& path, char separator)
      : path_(path.string()), separator_(separator), source_(open_source(path)) {
    skip_mark();
    if (!record(names_)) user_error("{}: holds no rows", path_);
    if (names_.size() == 1 && names_.front().find_first_of(";\t") != std::string::npos) {
      user_error("{}:1: only one column, called '{}'; expected {} between values, as in a {} file", path_,
                 repaired_utf8(names_.front()), separator_ == ',' ? "commas" : "tabs",
                 separator_ == ',' ? ".csv" : ".tsv");
    }
    std::set<std::string_view> seen;
    for (std::string& name : names_) {
      check_utf8(name, path_ + ":1: the name of a column");
      if (!seen.insert(name).second) user_error("{}:1: two columns are called '{}'", path_, name);
    }
  }

  std::optional<RowBlock> next() override {
    RowBlock block;
    std::vector<std::string> values;
    while (block.rows.size() < block_rows && block.bytes < block_bytes) {
      if (!record(values)) break;
      if (values.size() == 1 && values.front().empty() && names_.size() > 1) continue;  // a blank line
      if (values.size() != names_.size()) {
        user_error("{}:{}: {}, but the first line names {}", path_, record_line_, counted(std::ssize(values), "value"),
                   counted(std::ssize(names_), "column"));
      }
      io::Value::Map map;
      for (std::size_t i = 0; i < values.size(); ++i) {
        block.bytes += values[i].size();
        map.push_back({names_[i], io::Value(values[i])});
      }
      block.bytes += sizeof(RawRow);
      block.rows.push_back({.number = record_line_, .content = io::Value(std::move(map))});
    }
    if (block.rows.empty()) return std::nullopt;
    block.end = source_->position();
    return block;
  }

  std::string where(const RawRow& row) const override { return fmt::format("{}:{}", path_, row.number); }
  io::Value value(RawRow& row) const override {
    io::Value value = std::move(std::get<io::Value>(row.content));
    for (const io::Value::Member& member : *value.map()) {
      check_utf8(*member.value.text(), fmt::format("{}: {}", where(row), member.key));
    }
    return value;
  }

 private:
  // Of the byte order that spreadsheets begin a file with; a name in quotes may follow it.
  void skip_mark() {
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    if (peek() >= 0 && std::string_view(buffer_.data(), held_).starts_with(mark)) at_ = mark.size();
  }

  int peek() {
    if (at_ == held_) {
      held_ = source_->read(buffer_);
      at_ = 0;
      if (held_ == 0) return -1;
    }
    return static_cast<unsigned char>(buffer_[at_]);
  }

  // False at the end of the file.
  bool record(std::vector<std::string>& values) {
    values.clear();
    if (peek() < 0) return false;
    record_line_ = line_;
    std::size_t bytes = 0;
    for (std::string value;;) {
      const bool quoted = peek() == '"';
      if (quoted) quoted_value(value);
      const std::size_t in_quotes = value.size();
      for (int c = peek(); c >= 0 && c != separator_ && c != '\n' && value.size() <= max_record_bytes; c = peek()) {
        value += static_cast<char>(c);
        ++at_;
      }
      const int end = peek();
      if (end >= 0) ++at_;
      if (end != separator_ && value.size() > in_quotes && value.ends_with('\r')) value.pop_back();
      bytes += value.size() + sizeof(value);  // of many values that are empty, too
      if (bytes > max_record_bytes)
        user_error("{}:{}: a row that does not end; is a quote missing?", path_, record_line_);
      values.push_back(std::move(value));
      value.clear();
      if (end == separator_) continue;
      if (end == '\n') ++line_;
      return true;
    }
  }

  void quoted_value(std::string& value) {
    ++at_;
    for (;;) {
      const int c = peek();
      if (c < 0 || value.size() > max_record_bytes) {
        user_error("{}:{}: a value in quotes that does not end", path_, record_line_);
      }
      ++at_;
      if (c == '\n') ++line_;
      if (c != '"') {
        value += static_cast<char>(c);
      } else if (peek() == '"') {
        value += '"';
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string path_;
  char separator_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_ = std::vector<char>(std::size_t{1} << 20);
  std::size_t at_ = 0, held_ = 0;
  std::size_t line_ = 1, record_line_ = 1;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<RowBlocks> open_csv(const std::filesystem::path& path, char separator) {
  return std::make_unique<CsvRows>(path, separator);
}

}  // namespace inlay::data
