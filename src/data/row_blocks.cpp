#include "data/row_blocks.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/utf8.h"
#include "data/byte_source.h"
#include "data/csv_rows.h"
#include "data/dataset_files.h"
#include "data/line_reader.h"
#include "data/parquet/row_reader.h"
#include "data/parquet/token_reader.h"
#include "io/file.h"
#include "io/paths.h"

namespace inlay::data {
namespace {

constexpr std::size_t max_json_bytes = std::size_t{4} << 30;

}  // namespace

void check_utf8(std::string_view text, const std::string& where) {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  user_error("{}: {}", where, not_utf8(text.substr(0, valid), static_cast<unsigned char>(text[valid])));
}

namespace {

// A byte order mark, which only the first line can have, and the half of a line's end that Windows adds are no text.
io::Value text_row(const std::string& field, std::string_view text, const std::string& where) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.ends_with('\r')) text.remove_suffix(1);
  check_utf8(text, where);
  return io::Value(io::Value::Map{{field, io::Value(std::string(text))}});
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
    if (const std::size_t first = line.find_first_not_of(" \t\r\xEF\xBB\xBF");
        text_field_.empty() && first != line.npos && line[first] == '[') {
      user_error("{}: expected an object on every line, got an array; a list of rows is read from a file named *.json",
                 where(row));
    }
    if (text_field_.empty() && line.find_last_not_of(" \t\r\xEF\xBB\xBF{") == line.npos) {
      user_error(
          "{}: an object that spans several lines; expected one on every line, or a list of them in a file "
          "named *.json",
          where(row));
    }
    return text_field_.empty() ? io::read_value(line, where(row)) : text_row(text_field_, line, where(row));
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
  explicit ListRows(const std::filesystem::path& path) : ReadyRows(path), bytes_(io::file_bytes(path)) {
    list_ = io::read_value(read_all(path, max_json_bytes), path_);
    if (list_.list() == nullptr) user_error("{}: expected a list of rows, or one object per line", path_);
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

// Whether a .json file has an object a line, as many have, and not a list.
bool has_lines(const std::filesystem::path& path) {
  const std::unique_ptr<ByteSource> source = open_source(path);
  std::vector<char> piece(4096);
  for (;;) {
    const std::string_view text(piece.data(), source->read(piece));
    if (text.empty()) return false;
    const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    if (first != text.npos) return text[first] == '{';
  }
}

// Several files as one.
class ChainedRows final : public RowBlocks {
 public:
  ChainedRows(const DatasetFiles& files, std::string text_field, bool tokens)
      : files_(files), text_field_(std::move(text_field)), tokens_(tokens) {
    parts_.reserve(files_.files.size());  // other threads look into it
    if (files_.slice.all()) return;
    std::size_t rows = std::numeric_limits<std::size_t>::max();
    if (files_.slice.needs_count()) {
      DatasetFiles whole = files_;
      whole.slice = {};
      ChainedRows all(whole, text_field_, tokens_);
      rows = 0;
      while (const auto block = all.next()) rows += block->rows.size();
    }
    std::tie(begin_, end_) = files_.slice.of(rows);
  }

  std::optional<RowBlock> next() override {
    while (at_ < end_) {
      if (parts_.empty()) {
        if (files_.files.empty()) return std::nullopt;
        parts_.push_back(open(0));
      }
      auto block = parts_.back()->next();
      if (!block) {
        before_ += io::file_bytes(files_.files[parts_.size() - 1]);
        if (parts_.size() == files_.files.size()) return std::nullopt;
        parts_.push_back(open(parts_.size()));
        continue;
      }
      const std::size_t count = block->rows.size(), first = at_;
      at_ += count;
      for (RawRow& row : block->rows) row.file = parts_.size() - 1;
      block->end += before_;
      if (at_ <= begin_) continue;
      auto& rows = block->rows;
      if (at_ > end_) rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(end_ - first), rows.end());
      if (first < begin_) rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(begin_ - first));
      if (!rows.empty()) return block;
    }
    return std::nullopt;
  }
  std::string where(const RawRow& row) const override { return parts_[row.file]->where(row); }
  io::Value value(RawRow& row) const override { return parts_[row.file]->value(row); }

 private:
  std::unique_ptr<RowBlocks> open(std::size_t file) const {
    return open_rows(files_.files[file], text_field_, tokens_, files_.ds_type);
  }

  DatasetFiles files_;
  std::string text_field_;
  bool tokens_;
  std::vector<std::unique_ptr<RowBlocks>> parts_;
  std::size_t begin_ = 0, end_ = std::numeric_limits<std::size_t>::max(), at_ = 0;
  std::uint64_t before_ = 0;  // bytes of the files behind
};

}  // namespace

std::unique_ptr<RowBlocks> open_rows(const std::filesystem::path& path, const std::string& text_field, bool tokens,
                                     const std::string& ds_type) {
  const std::string extension = content_extension(path);
  const auto is = [&](const char* ending, const char* type) {
    return ds_type.empty() ? extension == ending : ds_type == type;
  };
  if (extension == ".jsonl") return std::make_unique<LineRows>(path, "");
  if (is(".json", "json")) {
    if (has_lines(path)) return std::make_unique<LineRows>(path, "");
    return std::make_unique<ListRows>(path);
  }
  if (is(".txt", "text")) return std::make_unique<LineRows>(path, text_field);
  if (extension == ".tsv") return open_csv(path, '\t');
  if (is(".csv", "csv")) return open_csv(path, ',');
  if (is(".parquet", "parquet")) {
    if (is_compressed(path))
      user_error("{}: a Parquet file is compressed internally; decompress it first", path.string());
    return std::make_unique<ParquetRows>(path, tokens);
  }
  user_error(
      "{}: data is read from .jsonl, .json, .parquet, .csv, .tsv and .txt files, also compressed (.gz or "
      ".zst); ds_type says what a file is (json, csv, parquet, text)",
      path.string());
}

std::unique_ptr<RowBlocks> open_rows(const DatasetFiles& files, const std::string& text_field, bool tokens) {
  return std::make_unique<ChainedRows>(files, text_field, tokens);
}

}  // namespace inlay::data
