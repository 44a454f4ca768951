#include "core/utf8.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace inlay {

namespace {

struct Step {
  std::size_t bytes;  // of the character, or of what stands in for one
  bool valid;
  bool cut = false;  // not valid only because the text ends
};

// What stands at the front of the text, which is not empty.
Step step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte alone decides on overlong forms, surrogates and what lies beyond U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {i, false, true};
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {i, false};
  }
  return {length, true};
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::array<std::uint64_t, 2> block;
    if (text.size() - at >= sizeof(block)) {  // most text is ASCII: sixteen bytes at a time
      std::memcpy(block.data(), text.data() + at, sizeof(block));
      if (((block[0] | block[1]) & 0x8080808080808080u) == 0) {
        at += sizeof(block);
        continue;
      }
    }
    const Step next = step(text.substr(at, 4));
    if (!next.valid) return at;
    at += next.bytes;
  }
  return at;
}

std::size_t whole_utf8_prefix(std::string_view text) {
  for (std::size_t behind = 1; behind <= 3 && behind <= text.size(); ++behind) {
    const std::size_t at = text.size() - behind;
    if (step(text.substr(at)).cut) return at;
  }
  return text.size();
}

std::string repaired_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    result.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    append_utf8(result, replacement_character);
    text.remove_prefix(step(text).bytes);
  }
  return result;
}

void append_utf8(std::string& text, char32_t value) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((value >> shift) & 0x3F)); };
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xC0 | (value >> 6));
    tail(0);
  } else if (value < 0x10000) {
    text += static_cast<char>(0xE0 | (value >> 12));
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xF0 | (value >> 18));
    tail(12), tail(6), tail(0);
  }
}

// Of a text of one line, the column is enough.
std::string not_utf8(std::string_view before, unsigned char byte) {
  const auto lines = std::ranges::count(before, '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  return fmt::format(
      "{}column {} is the byte 0x{:02X}, which is not UTF-8; iconv -f LATIN1 -t UTF-8 FILE converts text in Latin-1",
      lines > 0 ? fmt::format("line {}, ", lines + 1) : "", column, byte);
}

}  // namespace inlay
