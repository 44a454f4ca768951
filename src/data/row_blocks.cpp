#include "data/row_blocks.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "data/line_reader.h"
#include "data/parquet/row_reader.h"
#include "data/template/json_value.h"
#include "io/file.h"

namespace inlay::data {
namespace {

constexpr std::size_t block_rows = 1024;
constexpr std::size_t block_bytes = std::size_t{8} << 20;
constexpr std::size_t max_json_bytes = std::size_t{4} << 30;

// A byte order mark, which only the first line can have, and the half of a line's end that Windows adds are no text.
jinja::Value text_row(const std::string& field, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.ends_with('\r')) text.remove_suffix(1);
  jinja::Dict dict;
  dict.set(nullptr, jinja::make_string(nullptr, field), jinja::make_string(nullptr, repaired_utf8(text)));
  return jinja::make_dict(nullptr, std::move(dict));
}

class LineRows final : public RowBlocks {
 public:
  // text_field: empty where lines are JSON.
  LineRows(const std::filesystem::path& path, std::string text_field)
      : reader_(path), text_field_(std::move(text_field)) {}

  std::vector<RawRow> next() override {
    std::vector<RawRow> rows;
    for (std::size_t bytes = 0; rows.size() < block_rows && bytes < block_bytes;) {
      const auto line = reader_.next();
      if (!line) break;
      bytes += line->size();
      const std::string where = fmt::format("{}:{}", reader_.path(), reader_.line());
      rows.emplace_back(where, [text = std::string(*line), where, field = text_field_] {
        return field.empty() ? jinja::read_json(text, where) : text_row(field, text);
      });
    }
    return rows;
  }
  std::uint64_t bytes_read() const override { return reader_.bytes_read(); }

 private:
  LineReader reader_;
  std::string text_field_;
};

class ListRows final : public RowBlocks {
 public:
  explicit ListRows(const std::filesystem::path& path) : path_(path.string()) {
    const std::string text = io::read_file(path, max_json_bytes);
    bytes_ = text.size();
    try {
      list_ = jinja::read_json(text, path_);
    } catch (const UserError& error) {
      if (!text.starts_with('{')) throw;
      user_error("{} (a file with an object a line is called .jsonl)", error.what());
    }
    if (!list_.is_list()) {
      user_error("{}: expected a list of rows (one object a line belongs into a .jsonl file)", path_);
    }
  }

  std::vector<RawRow> next() override {
    const std::vector<jinja::Value>& items = list_.sequence()->items;
    std::vector<RawRow> rows;
    for (; at_ < items.size() && rows.size() < block_rows; ++at_) {
      rows.emplace_back(fmt::format("{}: row {}", path_, at_ + 1), [value = items[at_]] { return value; });
    }
    return rows;
  }
  std::uint64_t bytes_read() const override {
    const std::size_t count = std::max<std::size_t>(list_.sequence()->items.size(), 1);
    return static_cast<std::uint64_t>(static_cast<double>(bytes_) * static_cast<double>(at_) /
                                      static_cast<double>(count));
  }

 private:
  std::string path_;
  jinja::Value list_;
  std::size_t at_ = 0, bytes_ = 0;
};

class ParquetRows final : public RowBlocks {
 public:
  explicit ParquetRows(const std::filesystem::path& path) : file_(path), reader_(file_.bytes(), path.string()) {}

  std::vector<RawRow> next() override {
    std::vector<RawRow> rows;
    while (rows.size() < block_rows && reader_.rows_read() < reader_.rows()) {
      jinja::Value row = reader_.next();
      rows.emplace_back(fmt::format("{}: row {}", reader_.name(), reader_.rows_read()),
                        [row = std::move(row)] { return row; });
    }
    return rows;
  }
  std::uint64_t bytes_read() const override {
    const auto count = static_cast<double>(std::max<std::int64_t>(reader_.rows(), 1));
    return static_cast<std::uint64_t>(static_cast<double>(file_.bytes().size()) *
                                      static_cast<double>(reader_.rows_read()) / count);
  }

 private:
  io::MappedFile file_;
  parquet::RowReader reader_;
};

}  // namespace

std::unique_ptr<RowBlocks> open_rows(const std::filesystem::path& path, const std::string& text_field) {
  const std::string extension = path.extension();
  if (extension == ".json") return std::make_unique<ListRows>(path);
  if (extension == ".txt") return std::make_unique<LineRows>(path, text_field);
  if (extension == ".jsonl") return std::make_unique<LineRows>(path, "");
  if (extension == ".parquet") return std::make_unique<ParquetRows>(path);
  user_error("{}: data is read from .jsonl, .json, .parquet and .txt files", path.string());
}

}  // namespace inlay::data
