#pragma once

#include <vector>

#include "ops/attention/cpu_tiles.h"
#include "ops/attention/rules/rule.h"

// A rule over tiles of scores on the host: its nodes one after the other, each over a strip of a few keys and all
// queries of the tile.
namespace inlay::ops::cpu {

// Stands for "never": far below any score, yet finite, so that differences stay numbers.
inline constexpr float far_below = -1e30f;

// Where a tile of scores lies in its document.
struct TilePlace {
  rules::Place place;
  std::int64_t query, key;     // the first ones
  std::int64_t queries, keys;  // as they are padded
};

class TileRule {
 public:
  explicit TileRule(const AttentionRule& rule);

  // scores [keys, queries], block_size from row to row: q · k times `scale` becomes what the rule makes of it, and
  // twice far_below where nothing is seen. slopes, where wanted, like scores: the derivative. A full tile's mask is not
  // looked at, not even at its document's end. strip: memory of strip_vectors().
  void apply(float* scores, float* slopes, f32v* strip, const TilePlace& at, float scale, bool partial) const;

  // Vectors that the values of all nodes over one strip take.
  static std::int64_t strip_vectors(const AttentionRule& rule);

 private:
  struct Strip;
  void run(const Strip& strip, const std::vector<rules::Term>& terms) const;
  const std::vector<rules::Term>& terms_for(bool partial, bool slopes) const { return terms_[partial][slopes]; }

  const AttentionRule& rule_;
  std::vector<rules::Term> terms_[2][2];  // of tiles that are partial, and with slopes
};

}  // namespace inlay::ops::cpu
