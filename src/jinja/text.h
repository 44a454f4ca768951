#pragma once

#include "jinja/runtime.h"

// What string methods and filters have in common.
namespace inlay::jinja {

enum class Side { left, right, both };

// Without the characters at the ends; without spaces where no characters are given.
std::string_view stripped(Budget& budget, std::string_view text, std::optional<std::string_view> characters, Side side);

// The pieces between runs of spaces, at most that many splits (negative: any number) from the left or from the right.
std::vector<std::string_view> split_at_spaces(Budget& budget, std::string_view text, Integer most, Side side);
// The pieces between separators.
std::vector<std::string_view> split_at(Budget& budget, std::string_view text, std::string_view separator, Integer most,
                                       Side side);
std::vector<std::string_view> split_lines(Budget& budget, std::string_view text, bool keep_ends);

// Where the last occurrence begins, or npos.
std::size_t find_last_text(Budget& budget, std::string_view text, std::string_view wanted);

// The first `most` (negative: all) occurrences replaced.
Value replaced(Runtime& runtime, const String& text, std::string_view old, std::string_view fresh, Integer most);

// Copies of pieces of a text as a list of strings; of markup, markup again.
Value strings(Runtime& runtime, const std::vector<std::string_view>& pieces, bool markup = false);

// The texts of all items with a separator between them. strict: an item that is no string fails, as str.join has it.
Value joined(Runtime& runtime, const Value& items, std::string_view separator, bool strict);

}  // namespace inlay::jinja
