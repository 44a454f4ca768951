#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace inlay::data::tokenizer {

// Remembers the tokens of short pieces: of English text, some 98 in 100 are words seen a moment ago. Each piece has one
// place in the table, and the last one there stays.
class PieceCache {
 public:
  static constexpr std::size_t max_bytes = 16, max_ids = 3;

  struct Entry {
    std::uint64_t low = 0, high = 0;  // the bytes; pieces of less than 16 repeat some
    std::uint8_t bytes = 0, count = 0;
    std::array<std::int32_t, max_ids> ids{};
  };

  // Where the piece is or would be; 1 to max_bytes bytes.
  Entry& place(std::string_view piece) {
    const auto [low, high] = key(piece);
    return entries_[(low * 0x9E3779B97F4A7C15u ^ (high + piece.size()) * 0xC2B2AE3D27D4EB4Fu) >> (64 - bits)];
  }
  static bool holds(const Entry& entry, std::string_view piece) {
    const auto [low, high] = key(piece);
    return entry.low == low && entry.high == high && entry.bytes == piece.size();
  }
  // `=`; at most max_ids ids.
  static void store(Entry& entry, std::string_view piece, std::span<const std::int32_t> ids) {
    const auto [low, high] = key(piece);
    entry = {low, high, static_cast<std::uint8_t>(piece.size()), static_cast<std::uint8_t>(ids.size())};
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr int bits = 16;

  struct Key {
    std::uint64_t low, high;
  };
  template <class Word>
  static std::uint64_t load(const char* at) {
    Word word;
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  // All bytes of the piece in two words, without reading beyond it: the two overlap where they have to.
  static Key key(std::string_view piece) {
    const char* begin = piece.data();
    const char* end = begin + piece.size();
    if (piece.size() >= 8) return {load<std::uint64_t>(begin), load<std::uint64_t>(end - 8)};
    if (piece.size() >= 4) return {load<std::uint32_t>(begin), load<std::uint32_t>(end - 4)};
    if (piece.size() >= 2) return {load<std::uint16_t>(begin), load<std::uint16_t>(end - 2)};
    return {load<std::uint8_t>(begin), 0};
  }

  std::vector<Entry> entries_ = std::vector<Entry>(std::size_t{1} << bits);
};

}  // namespace inlay::data::tokenizer
