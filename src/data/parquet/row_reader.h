#pragma once

#include <memory>
#include <vector>

#include "data/parquet/column_reader.h"

namespace inlay::data::parquet {

// The rows of a Parquet file, each as the dict that the same row would be in a JSONL file: lists, structs and maps
// included. Pages are read as they are reached, so that memory goes by their size and not by the file's.
class RowReader {
 public:
  // The file's bytes must outlive the reader; errors begin with its name.
  RowReader(Bytes file, Metadata metadata, std::string name);

  std::int64_t rows() const { return metadata_.rows; }
  std::int64_t rows_read() const { return read_; }

  // rows_read() < rows().
  io::Value next();

 private:
  void begin_group();
  io::Value read(const Node& node);
  // What a node is where it is there: of a repeated one, one of its repetitions.
  io::Value instance(const Node& node);
  std::vector<io::Value> repetitions(const Node& node);
  io::Value list(const Node& node);
  io::Value map(const Node& node);
  // Takes the entry by which every column below a node says that it is missing.
  void pass(const Node& node);
  const ColumnReader& first(const Node& node) const;

  std::string name_;
  Bytes file_;
  Metadata metadata_;
  std::size_t next_group_ = 0;
  std::int64_t group_left_ = 0, read_ = 0;
  std::vector<std::unique_ptr<ColumnReader>> columns_;
};

}  // namespace inlay::data::parquet
