#pragma once

#include "data/parquet/cursor.h"

namespace inlay::data::parquet {

// Fills `to` with what `from` is compressed from, by the codec that has this number in the file. What does not fill it
// exactly, and a codec that is not there, is a UserError that begins with where.
void decompress(int codec, Bytes from, std::span<std::byte> to, const std::string& where);

}  // namespace inlay::data::parquet
