#pragma once

#include <string>
#include <string_view>

#include "data/token_arrays.h"

namespace inlay::data {

// Reads a line in the plain form that tokenizers write: an object of integer arrays and simple strings. Gives up, and
// returns false, at anything it does not know; that is no verdict on the line.
bool parse_line_quickly(std::string_view line, TokenArrays& arrays);

// Reads any line. `where` is "file:line" for the errors, which are UserError.
void parse_line_fully(std::string_view line, const std::string& where, TokenArrays& arrays);

}  // namespace inlay::data
