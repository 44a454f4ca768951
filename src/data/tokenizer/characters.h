#pragma once

#include <cstdint>

namespace inlay::data::tokenizer {

// What splitting wants to know of a character; several may hold.
enum Class : std::uint8_t {
  letter = 1,        // \p{L}
  number = 2,        // \p{N}
  space = 4,         // \s: White_Space
  newline = 8,       // \r or \n; a space too
  head = 16,         // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  tail = 32,         // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  punctuation = 64,  // \p{P}, and all of ASCII that is neither letter, digit, space nor control
};

// The classes of every character below U+10000, made once.
const std::uint8_t* class_table();
std::uint8_t classes_of_rare(char32_t c);  // of any character, without the table

inline std::uint8_t classes_of(char32_t c, const std::uint8_t* table = class_table()) {
  return c < 0x10000 ? table[c] : classes_of_rare(c);
}

// \w of regular expressions: Alphabetic, marks, decimal digits, connectors such as _, and the joiners.
bool is_word_character(char32_t c);

}  // namespace inlay::data::tokenizer
