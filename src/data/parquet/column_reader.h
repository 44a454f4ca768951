#pragma once

#include <memory>
#include <optional>

#include "data/parquet/encoding.h"
#include "data/parquet/schema.h"
#include "data/token_arrays.h"

namespace inlay::data::parquet {

// The entries of a column within a row group, one after the other, a page in memory at a time. An entry is a value or
// the place where one is missing, with its levels.
class ColumnReader {
 public:
  ColumnReader(Bytes file, const ColumnChunk& chunk, const Node& leaf, const std::string& file_name);
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  bool done() const { return !current_; }
  // Of the entry that take() will take; done() is false.
  int repetition() const { return current_->repetition; }
  int definition() const { return current_->definition; }
  // Its value, or none where that is missing; then the next entry is the current one.
  io::Value take();
  // The entries of one row of a list of integers, all at once. List is the column, or the node around it.
  void take_list(const Node& list, TokenArray& array);

  [[noreturn]] void fail(std::string_view message) const { user_error("{}: {}", where_, message); }

 private:
  struct Entry {
    int repetition, definition;
  };
  struct Page;

  void advance();
  ValueReader& values();
  // The next page with entries; the dictionary is read on the way.
  void next_page();
  void read_page(const Page& page, Bytes bytes);
  Bytes decompressed(Bytes bytes, std::size_t size);

  const Node& leaf_;
  std::string where_;
  Cursor pages_;
  int codec_;
  std::int64_t left_;           // entries behind the current page
  std::int64_t page_left_ = 0;  // entries of this page behind the current one
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t buffer_size_ = 0;
  std::optional<Dictionary> dictionary_;
  std::optional<RunReader> repetitions_, definitions_;
  struct Encoded {
    int encoding;
    Cursor cursor;
    std::int64_t count;
  };
  std::optional<Encoded> encoded_;       // the page's values
  std::unique_ptr<ValueReader> values_;  // made with the first of them: a page of nothing but nulls may lack them
  std::optional<Entry> current_;
};

}  // namespace inlay::data::parquet
