#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace inlay::data::tokenizer {

// How byte-level BPE spells a byte: as one printable character. Those that are printable in Latin-1 stand for
// themselves, the others, in order, for U+0100 and on.
const std::array<std::string, 256>& byte_alphabet();

// The bytes that text in that alphabet spells; nothing where a character is not of the alphabet.
std::optional<std::string> spelt_bytes(std::string_view text);

}  // namespace inlay::data::tokenizer
