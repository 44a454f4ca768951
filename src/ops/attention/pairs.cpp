#include "ops/attention/pairs.h"

#include <algorithm>

#include "ops/attention/rules/rule.h"

namespace inlay::ops {

namespace {

double causal_pairs(std::int64_t length, std::int64_t window) {
  const std::int64_t reach = window > 0 ? std::min(window, length) : length;
  const auto seen = static_cast<double>(reach), all = static_cast<double>(length);
  return seen * (seen + 1) / 2 + (all - seen) * seen;
}

// The pairs of one document and one head, by halving its square of pairs until the mask is decided. A document has at
// most 32 × 32 smallest tiles, so that plans of long ones stay quick.
class RulePairs {
 public:
  RulePairs(const AttentionRule& rule, const rules::Place& place, std::int64_t length)
      : rule_(rule), place_(place), smallest_(std::max<std::int64_t>(128, (length + 31) / 32)) {}

  double count(std::int64_t query, std::int64_t query_end, std::int64_t key, std::int64_t key_end) const {
    if (query >= query_end || key >= key_end) return 0;
    const AttentionRule::Tile tile = rule_.classify(place_, query, query_end - 1, key, key_end - 1);
    if (tile == AttentionRule::Tile::empty) return 0;
    const std::int64_t rows = query_end - query, columns = key_end - key;
    const double area = static_cast<double>(rows) * static_cast<double>(columns);
    if (tile == AttentionRule::Tile::full) return area;
    if (rows <= smallest_ && columns <= smallest_) return area * share(query, rows, key, columns);
    const std::int64_t query_half = query + (rows + 1) / 2, key_half = key + (columns + 1) / 2;
    return count(query, query_half, key, key_half) + count(query, query_half, key_half, key_end) +
           count(query_half, query_end, key, key_half) + count(query_half, query_end, key_half, key_end);
  }

 private:
  double share(std::int64_t query, std::int64_t rows, std::int64_t key, std::int64_t columns) const {
    constexpr std::int64_t asked = 61;  // prime, so that no period of the mask hides
    double seen = 0;
    for (std::int64_t i = 0; i < asked; ++i) {
      const auto q = static_cast<float>(query + i * 37 % rows), k = static_cast<float>(key + i * 59 % columns);
      seen += evaluate(rule_.expressions(), rule_.mask(), {place_, q, k, 0});
    }
    return seen / static_cast<double>(asked);
  }

  const AttentionRule& rule_;
  const rules::Place& place_;
  std::int64_t smallest_;
};

// Averaged over some heads where the mask differs between them.
double rule_pairs(const AttentionRule& rule, std::int64_t document, std::int64_t length, std::int64_t heads) {
  const std::int64_t asked = rule.mask_depends_on_head() ? std::min<std::int64_t>(heads, 8) : 1;
  const auto number = [](std::int64_t x) { return static_cast<float>(x); };
  double pairs = 0;
  for (std::int64_t i = 0; i < asked; ++i) {
    const rules::Place place{number(i * heads / asked), number(document), number(length), 0.0f, number(heads), 0.0f};
    pairs += RulePairs(rule, place, length).count(0, length, 0, length);
  }
  return pairs / static_cast<double>(asked);
}

}  // namespace

double attention_pairs(const AttentionSpec& spec, std::int64_t heads) {
  const std::span<const std::int32_t> offsets = spec.host_cu_seqlens;
  double pairs = 0, last = 0;
  std::int64_t last_length = -1;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    const std::int64_t length = offsets[i] - offsets[i - 1];
    if (length != last_length) {  // a plan's documents are mostly of one length
      last_length = length;
      last = spec.rule == nullptr ? causal_pairs(length, spec.window)
                                  : rule_pairs(*spec.rule, static_cast<std::int64_t>(i) - 1, length, heads);
    }
    pairs += last;
  }
  return pairs;
}

}  // namespace inlay::ops
