#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace inlay {

inline constexpr char32_t replacement_character = 0xFFFD;

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
};

// The character that begins at `at`, in text known to be valid.
inline CodePoint code_point_at(const char* at) {
  const auto byte = [at](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const auto more = [&](int i) { return byte(i) & 0x3F; };
  if (first < 0xE0) return {(first & 0x1F) << 6 | more(1), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | more(1) << 6 | more(2), 3};
  return {(first & 0x07) << 18 | more(1) << 12 | more(2) << 6 | more(3), 4};
}

// Where the character before `end` begins, in valid text; end > 0.
inline std::size_t previous_character(std::string_view text, std::size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

// Bytes at the front that are valid: the whole text, or up to the first byte of what is not UTF-8 (surrogates, overlong
// forms and characters beyond U+10FFFF are not).
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// All bytes but those of a character that the end of the text has cut off, which more bytes may complete.
std::size_t whole_utf8_prefix(std::string_view text);

// Text with U+FFFD in place of what is not UTF-8: one for the longest beginning of a character that is broken off, one
// for every other byte. Unicode recommends this, and Python's errors="replace" and Rust's lossy strings do the same.
std::string repaired_utf8(std::string_view text);
// For a message: "line 2, column 5 is the byte 0xE9, which is not UTF-8; ...", of what follows valid text.
std::string not_utf8(std::string_view before, unsigned char byte);

void append_utf8(std::string& text, char32_t value);

}  // namespace inlay
