#pragma once

#include <array>
#include <memory>

#include "data/parquet/column_reader.h"
#include "data/token_arrays.h"

namespace inlay::data::parquet {

// The rows of a file whose input_ids, labels and attention_mask, as far as it has them, are lists of integers. Their
// values go from the pages straight into arrays; other columns are not looked at.
class TokenReader {
 public:
  static bool fits(const Metadata& metadata);
  // The file's bytes must outlive the reader, and its metadata fits; errors begin with its name.
  TokenReader(Bytes file, Metadata metadata, std::string name);

  std::int64_t rows() const { return metadata_.rows; }
  std::int64_t rows_read() const { return read_; }
  // rows_read() < rows().
  TokenArrays next();

 private:
  void begin_group();

  struct Column {
    const Node* list;
    std::unique_ptr<ColumnReader> reader;  // of the row group
  };
  Bytes file_;
  Metadata metadata_;
  std::string name_;
  std::array<Column, 3> columns_{};  // in the order of TokenArrays
  std::size_t next_group_ = 0;
  std::int64_t group_left_ = 0, read_ = 0;
};

}  // namespace inlay::data::parquet
