#pragma once

#include <filesystem>
#include <memory>

#include "data/row_blocks.h"

namespace inlay::data {

// The rows of a .csv or .tsv file (RFC 4180): the first line names the columns, and every value is text. What is in
// quotes may hold separators and ends of lines.
std::unique_ptr<RowBlocks> open_csv(const std::filesystem::path& path, char separator);

}  // namespace inlay::data
