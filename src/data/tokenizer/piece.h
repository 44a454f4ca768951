#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace inlay::data::tokenizer {

// A stretch of a text, in bytes. Texts are below 4 GiB (Tokenizer::encode refuses longer ones).
struct Piece {
  std::uint32_t begin = 0, end = 0;

  bool operator==(const Piece&) const = default;
};

inline Piece make_piece(std::size_t begin, std::size_t end) {
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
}

inline std::string_view text_of(std::string_view text, Piece piece) {
  return text.substr(piece.begin, piece.end - piece.begin);
}

}  // namespace inlay::data::tokenizer
