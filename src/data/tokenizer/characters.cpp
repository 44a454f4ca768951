#include "data/tokenizer/characters.h"

#include <utf8proc.h>

#include <array>

namespace inlay::data::tokenizer {

std::uint8_t classes_of_rare(char32_t c) {
  if (c == '\r' || c == '\n') return space | newline;
  if ((c >= '\t' && c <= '\r') || c == 0x85) return space;  // White_Space is these controls and \p{Z}
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return letter | head;
    case UTF8PROC_CATEGORY_LL: return letter | tail;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return letter | head | tail;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return head | tail;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return space;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return punctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK: return c < 0x80 ? punctuation : 0;  // $ + < = > ^ ` | ~
    default: return 0;
  }
}

bool is_word_character(char32_t c) {
  if ((classes_of(c) & (letter | head | tail)) != 0 || c == 0x200C || c == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_SO:  // letters in circles and squares
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);
    default: return false;
  }
}

const std::uint8_t* class_table() {
  static const std::array<std::uint8_t, 0x10000> table = [] {
    std::array<std::uint8_t, 0x10000> made;
    for (char32_t c = 0; c < made.size(); ++c) made[c] = classes_of_rare(c);
    return made;
  }();
  return table.data();
}

}  // namespace inlay::data::tokenizer
