#include "data/tokenizer/byte_alphabet.h"

#include <cstdint>

#include "core/utf8.h"

namespace inlay::data::tokenizer {

namespace {

constexpr char32_t alphabet_end = 0x144;  // 256, and one for each of the 68 bytes that are not printable

std::array<char32_t, 256> characters() {
  std::array<char32_t, 256> result{};
  char32_t beyond = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    result[byte] = printable ? byte : beyond++;
  }
  return result;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, 256> alphabet = [] {
    std::array<std::string, 256> result;
    const auto all = characters();
    for (std::size_t byte = 0; byte < 256; ++byte) append_utf8(result[byte], all[byte]);
    return result;
  }();
  return alphabet;
}

std::optional<std::string> spelt_bytes(std::string_view text) {
  static const std::array<std::int16_t, alphabet_end> bytes = [] {
    std::array<std::int16_t, alphabet_end> result;
    result.fill(-1);
    const auto all = characters();
    for (std::size_t byte = 0; byte < 256; ++byte) result[all[byte]] = static_cast<std::int16_t>(byte);
    return result;
  }();
  std::string spelt;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.data() + at);
    if (c.value >= alphabet_end || bytes[c.value] < 0) return std::nullopt;
    spelt += static_cast<char>(bytes[c.value]);
    at += c.bytes;
  }
  return spelt;
}

}  // namespace inlay::data::tokenizer
