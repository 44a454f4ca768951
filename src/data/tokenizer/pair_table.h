#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace inlay::data::tokenizer {

// Which pairs of tokens merge, and how early. A flat table: merging looks up two pairs a step, most of which are not
// there.
class PairTable {
 public:
  static constexpr std::uint32_t never = 0xFFFFFFFF;  // the rank of a pair that does not merge

  explicit PairTable(std::size_t count = 0)
      : shift_(64 - static_cast<int>(std::bit_width(2 * count + 1))), entries_(std::size_t{1} << (64 - shift_)) {}

  // `=`: the last rule for a pair counts. At most as many pairs as the table was made for, no two of one rank.
  void set(std::int32_t left, std::int32_t right, std::uint32_t rank) {
    const std::uint64_t key = key_of(left, right);
    std::size_t at = home(key);
    while (entries_[at].key != empty && entries_[at].key != key) at = next(at);
    entries_[at] = {key, rank};
  }

  // Lower merges earlier.
  std::uint32_t rank(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t at = home(key);; at = next(at)) {
      if (entries_[at].key == key) return entries_[at].rank;
      if (entries_[at].key == empty) return never;
    }
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};  // ids are not negative, so no pair has this key

  struct Entry {
    std::uint64_t key = empty;
    std::uint32_t rank = never;
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t home(std::uint64_t key) const {
    const std::uint64_t mixed = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
    return (mixed ^ mixed >> 29) * 0xC2B2AE3D27D4EB4Fu >> shift_;
  }
  std::size_t next(std::size_t at) const { return (at + 1) & (entries_.size() - 1); }

  int shift_;
  std::vector<Entry> entries_;
};

}  // namespace inlay::data::tokenizer
