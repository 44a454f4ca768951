#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/token_arrays.h"
#include "io/value.h"

namespace inlay::data {

struct DatasetFiles;

// A row as it stands in the file: text that is not parsed yet, for that is most of the work, and threads share it; or
// what came out of columns.
struct RawRow {
  std::size_t number = 0;  // its line, or its place among the rows, from 1
  std::size_t file = 0;    // which of several it stands in
  std::variant<std::string_view, io::Value, std::unique_ptr<TokenArrays>> content;
};

// Some rows, with the text that they stand in.
struct RowBlock {
  std::vector<char> text;
  std::vector<RawRow> rows;
  std::size_t bytes = 0;  // of memory, about
  std::uint64_t end = 0;  // bytes of the file up to here
};

// Small, so that many threads have work without much of it in memory; one row may be larger.
inline constexpr std::size_t block_rows = 1024, block_bytes = std::size_t{256} << 10;

// The rows of a file, block by block. `.jsonl`: an object a line; `.json`: a list of objects, or an object a line;
// `.parquet`: its rows; `.csv`, `.tsv`: a line is a row of texts; `.txt`: a line is a row whose text_field has it.
// All but `.parquet` may be compressed: `.jsonl.gz`, `.csv.zst`.
class RowBlocks {
 public:
  virtual ~RowBlocks() = default;
  // Nothing at the end.
  virtual std::optional<RowBlock> next() = 0;

  // These two on any thread, also while another one is in next().
  virtual std::string where(const RawRow& row) const = 0;
  // What the row holds, which is taken out of it. A row that cannot be parsed is a UserError. Not of token arrays.
  virtual io::Value value(RawRow& row) const = 0;
};

// Text of a row that is not UTF-8 is a UserError. where: of the row.
void check_utf8(std::string_view text, const std::string& where);

// For rows of type tokens a Parquet file gives token arrays, where its columns are lists of integers. ds_type says what
// a file is whose name does not (json, csv, parquet, text). A file of another kind is a UserError.
std::unique_ptr<RowBlocks> open_rows(const std::filesystem::path& path, const std::string& text_field,
                                     bool tokens = false, const std::string& ds_type = "");

// The rows of several files, one after the other, or a slice of them.
std::unique_ptr<RowBlocks> open_rows(const DatasetFiles& files, const std::string& text_field, bool tokens = false);

}  // namespace inlay::data
