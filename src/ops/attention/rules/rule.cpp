#include "ops/attention/rules/rule.h"

#include <atomic>
#include <cmath>

#include "core/error.h"
#include "ops/attention/rules/parse.h"

namespace inlay::ops {

using rules::Expressions;
using rules::Node;
using rules::Op;
using rules::Term;

std::shared_ptr<const AttentionRule> AttentionRule::parse(std::string_view mask, std::string_view score) {
  Expressions expressions;
  const Term mask_term = rules::parse_mask(expressions, mask.empty() ? "causal" : mask);
  const Term score_term = rules::parse_score(expressions, score.empty() ? "s" : score);
  return std::make_shared<const AttentionRule>(std::move(expressions), mask_term, score_term);
}

AttentionRule::AttentionRule(Expressions expressions, Term mask, Term score)
    : expressions_(std::move(expressions)), mask_(mask), score_(score), slope_(expressions_.derivative(score)) {
  INLAY_ASSERT(is_truth(expressions_[mask].op) && !expressions_.uses(mask, Op::score), "the mask is no mask");
  INLAY_ASSERT(!is_truth(expressions_[score].op), "the score is no number");
  const auto used = [&](Op leaf) { return expressions_.uses(mask_, leaf) || expressions_.uses(score_, leaf); };
  static std::atomic<std::uint64_t> rules_made = 0;
  id_ = ++rules_made;
  changes_scores_ = expressions_[score].op != Op::score;
  mask_depends_on_head_ = expressions_.uses(mask, Op::head) || expressions_.uses(mask, Op::bias);
  wants_prefix_lengths_ = used(Op::prefix_length);
  wants_head_bias_ = used(Op::bias);
  causal_window_ = find_causal_window();
}

std::optional<std::int64_t> AttentionRule::find_causal_window() const {
  if (changes_scores_) return std::nullopt;
  const auto is_causal = [&](Term term) {
    const Node& node = expressions_[term];
    return node.op == Op::less_equal && expressions_[node.a].op == Op::key && expressions_[node.b].op == Op::query;
  };
  const auto window_of = [&](Term term) -> std::optional<std::int64_t> {
    const Node& less = expressions_[term];
    if (less.op != Op::less || expressions_[less.a].op != Op::subtract) return std::nullopt;
    const Node &distance = expressions_[less.a], &size = expressions_[less.b];
    const bool plain = expressions_[distance.a].op == Op::query && expressions_[distance.b].op == Op::key &&
                       size.op == Op::constant && size.value >= 1 && size.value < 1e9f &&
                       size.value == std::floor(size.value);
    return plain ? std::optional(static_cast<std::int64_t>(size.value)) : std::nullopt;
  };
  if (is_causal(mask_)) return 0;
  const Node& node = expressions_[mask_];
  if (node.op != Op::both) return std::nullopt;
  if (is_causal(node.a)) return window_of(node.b);
  if (is_causal(node.b)) return window_of(node.a);
  return std::nullopt;
}

AttentionRule::Tile AttentionRule::classify(const rules::Place& place, std::int64_t first_query,
                                            std::int64_t last_query, std::int64_t first_key,
                                            std::int64_t last_key) const {
  const auto between = [](std::int64_t a, std::int64_t b) {
    return rules::Interval{static_cast<float>(a), static_cast<float>(b)};
  };
  const rules::Interval seen =
      enclose(expressions_, mask_, place, between(first_query, last_query), between(first_key, last_key));
  if (seen.high == 0.0f) return Tile::empty;
  return seen.low == 1.0f ? Tile::full : Tile::partial;
}

}  // namespace inlay::ops
