#pragma once

#include <memory>
#include <vector>

#include "data/parquet/schema.h"
#include "data/token_arrays.h"
#include "io/value.h"

namespace inlay::data::parquet {

// Small numbers in runs of equals and packed groups of eight: levels, places in a dictionary, booleans. Without bits
// there is nothing to read, and everything is 0.
class RunReader {
 public:
  RunReader(Cursor cursor, int bits);
  std::uint32_t next();

 private:
  void begin_run();

  Cursor cursor_;
  int bits_;
  std::uint64_t left_ = 0;  // of the run
  bool packed_ = false;
  std::uint32_t value_ = 0;  // of a run of equals
  Bytes group_;              // of a packed one
  std::uint64_t bit_ = 0;
};

// The values of a page, one after the other.
class ValueReader {
 public:
  virtual ~ValueReader() = default;
  virtual io::Value next() = 0;
  // So many of a type that is_integer(), added to the array.
  virtual void integers(TokenArray& array, std::size_t count) = 0;
};

// A dictionary's values, each read once: as they lie in the file where the type is_integer().
struct Dictionary {
  std::vector<io::Value> values;
  std::vector<std::int64_t> integers;
};

// By the encoding that has this number in the file; the dictionary is used where that needs one.
std::unique_ptr<ValueReader> read_values(int encoding, Cursor cursor, std::int64_t count, const LeafType& type,
                                         const Dictionary* dictionary);
Dictionary read_dictionary(Cursor cursor, std::int64_t count, const LeafType& type);

}  // namespace inlay::data::parquet
