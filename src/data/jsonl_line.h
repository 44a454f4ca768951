#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inlay::data {

// The arrays of one line. Reused from line to line, so that reading allocates nothing.
struct LineArrays {
  struct Array {
    std::vector<std::int64_t> values;
    bool present = false;
  };
  Array input_ids, labels, attention_mask;

  void clear();
  Array* find(std::string_view key);
};

// Reads a line in the plain form that tokenizers write: an object of integer arrays and simple strings. Gives up, and
// returns false, at anything it does not know; that is no verdict on the line.
bool parse_line_quickly(std::string_view line, LineArrays& arrays);

// Reads any line. `where` is "file:line" for the errors, which are UserError.
void parse_line_fully(std::string_view line, const std::string& where, LineArrays& arrays);

}  // namespace inlay::data
