#pragma once

#include "data/parquet/schema.h"
#include "io/value.h"

namespace inlay::data::parquet {

// Values of a column as rows have them. Times and dates are the integers that the file holds; bytes that are no text
// become text all the same, with a replacement where they cannot.
io::Value of_integer(std::int64_t value, const LeafType& type);
io::Value of_bytes(std::string_view bytes, const LeafType& type);
// One of any type, as it lies in the file.
io::Value of_plain(Cursor& cursor, const LeafType& type);

}  // namespace inlay::data::parquet
