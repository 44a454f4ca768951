#include "data/row_blocks.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "data/line_reader.h"
#include "data/parquet/row_reader.h"
#include "data/parquet/token_reader.h"
#include "io/file.h"

namespace inlay::data {
namespace {

// Small, so that many threads have work without much of it in memory; one row may be larger.
constexpr std::size_t block_rows = 1024;
constexpr std::size_t block_bytes = std::size_t{256} << 10;
constexpr std::size_t max_json_bytes = std::size_t{4} << 30;

// A byte order mark, which only the first line can have, and the half of a line's end that Windows adds are no text.
io::Value text_row(const std::string& field, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return io::Value(io::Value::Map{{field, io::Value(repaired_utf8(text))}});
}

class LineRows final : public RowBlocks {
 public:
  // text_field: empty where lines are JSON.
  LineRows(const std::filesystem::path& path, std::string text_field)
      : reader_(path), text_field_(std::move(text_field)) {}

  std::optional<RowBlock> next() override {
    RowBlock block;
    std::vector<std::size_t> ends;
    while (block.rows.size() < block_rows && block.text.size() < block_bytes) {
      const auto line = reader_.next();
      if (!line) break;
      block.text.insert(block.text.end(), line->begin(), line->end());
      ends.push_back(block.text.size());
      block.rows.push_back({.number = reader_.line(), .content = {}});
    }
    if (block.rows.empty()) return std::nullopt;
    for (std::size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
      block.rows[i].content = std::string_view(block.text.data() + begin, ends[i] - begin);
    }
    block.bytes = block.text.size() + block.rows.size() * sizeof(RawRow);
    block.end = reader_.position();
    return block;
  }
  std::string where(const RawRow& row) const override { return fmt::format("{}:{}", reader_.path(), row.number); }
  io::Value value(RawRow& row) const override {
    const auto line = std::get<std::string_view>(row.content);
    return text_field_.empty() ? io::read_value(line, where(row)) : text_row(text_field_, line);
  }

 private:
  LineReader reader_;
  std::string text_field_;
};

// Rows that came out of the file as what they are.
class ReadyRows : public RowBlocks {
 public:
  explicit ReadyRows(const std::filesystem::path& path) : path_(path.string()) {}

  std::string where(const RawRow& row) const final { return fmt::format("{}: row {}", path_, row.number); }
  io::Value value(RawRow& row) const final { return std::move(std::get<io::Value>(row.content)); }

 protected:
  // Calls take() for the content of each row that is left, and says where in the file that leads by the rows' number.
  template <class Take>
  std::optional<RowBlock> collect(std::size_t& at, std::size_t count, std::size_t file_bytes, Take&& take) {
    RowBlock block;
    while (at < count && block.rows.size() < block_rows && block.bytes < block_bytes) {
      auto [content, bytes] = take();
      block.rows.push_back({.number = ++at, .content = std::move(content)});
      block.bytes += sizeof(RawRow) + bytes;
    }
    if (block.rows.empty()) return std::nullopt;
    block.end = static_cast<std::uint64_t>(static_cast<double>(file_bytes) * static_cast<double>(at) /
                                           static_cast<double>(count));
    return block;
  }

  std::string path_;
};

class ListRows final : public ReadyRows {
 public:
  explicit ListRows(const std::filesystem::path& path) : ReadyRows(path) {
    const std::string text = io::read_file(path, max_json_bytes);
    bytes_ = text.size();
    try {
      list_ = io::read_value(text, path_);
    } catch (const UserError& error) {
      if (!text.starts_with('{')) throw;
      user_error("{} (a file with an object a line is called .jsonl)", error.what());
    }
    if (list_.list() == nullptr) {
      user_error("{}: expected a list of rows (one object a line belongs into a .jsonl file)", path_);
    }
  }

  std::optional<RowBlock> next() override {
    io::Value::List& rows = *list_.list();
    return collect(at_, rows.size(), bytes_, [&] {
      io::Value row = std::move(rows[at_]);
      const std::size_t bytes = row.bytes();
      return std::pair(std::move(row), bytes);
    });
  }

 private:
  io::Value list_;
  std::size_t at_ = 0, bytes_ = 0;
};

class ParquetRows final : public ReadyRows {
 public:
  ParquetRows(const std::filesystem::path& path, bool tokens) : ReadyRows(path), file_(path) {
    parquet::Metadata metadata = parquet::read_metadata(file_.bytes(), path_);
    rows_ = static_cast<std::size_t>(metadata.rows);
    if (tokens && parquet::TokenReader::fits(metadata)) {
      token_reader_.emplace(file_.bytes(), std::move(metadata), path_);
    } else {
      row_reader_.emplace(file_.bytes(), std::move(metadata), path_);
    }
  }

  std::optional<RowBlock> next() override {
    return collect(at_, rows_, file_.bytes().size(), [&] {
      using Content = decltype(RawRow::content);
      if (token_reader_) {
        auto arrays = std::make_unique<TokenArrays>(token_reader_->next());
        const std::size_t bytes = sizeof(TokenArrays) + 8 * arrays->input_ids.values.size();
        return std::pair(Content(std::move(arrays)), bytes);
      }
      io::Value row = row_reader_->next();
      const std::size_t bytes = row.bytes();
      return std::pair(Content(std::move(row)), bytes);
    });
  }

 private:
  io::MappedFile file_;
  std::optional<parquet::TokenReader> token_reader_;
  std::optional<parquet::RowReader> row_reader_;
  std::size_t rows_ = 0, at_ = 0;
};

}  // namespace

std::unique_ptr<RowBlocks> open_rows(const std::filesystem::path& path, const std::string& text_field, bool tokens) {
  const std::string extension = path.extension();
  if (extension == ".json") return std::make_unique<ListRows>(path);
  if (extension == ".txt") return std::make_unique<LineRows>(path, text_field);
  if (extension == ".jsonl") return std::make_unique<LineRows>(path, "");
  if (extension == ".parquet") return std::make_unique<ParquetRows>(path, tokens);
  user_error("{}: data is read from .jsonl, .json, .parquet and .txt files", path.string());
}

}  // namespace inlay::data
