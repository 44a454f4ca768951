#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/formats/row.h"

namespace inlay::data {

// A row as it stands in the file, not parsed yet: parsing is most of the work, and threads share it.
class RawRow {
 public:
  RawRow(std::string where, std::function<jinja::Value()> parse) : where_(std::move(where)), parse_(std::move(parse)) {}

  const std::string& where() const { return where_; }
  // A row that cannot be parsed is a UserError.
  Row row() const { return Row(parse_(), where_); }

 private:
  std::string where_;
  std::function<jinja::Value()> parse_;
};

// The rows of a file, some at a time. `.jsonl`: an object a line; `.json`: a list of objects; `.parquet`: its rows;
// `.txt`: a line is a row whose text_field has it. Another ending is a UserError.
class RowBlocks {
 public:
  virtual ~RowBlocks() = default;
  // Nothing at the end.
  virtual std::vector<RawRow> next() = 0;
  virtual std::uint64_t bytes_read() const = 0;
};
std::unique_ptr<RowBlocks> open_rows(const std::filesystem::path& path, const std::string& text_field);

}  // namespace inlay::data
