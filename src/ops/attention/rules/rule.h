#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ops/attention/rules/expression.h"

// What attention does to its scores: which pairs of tokens it sees (a mask), and what it makes of a pair's score before
// the softmax. Documents of a packed batch never see each other, whatever the mask says.
namespace inlay::ops {

class AttentionRule {
 public:
  // From text (ops/attention/rules/parse.h). An empty mask is "causal", an empty score leaves the scores alone.
  // UserError names the column of a mistake.
  static std::shared_ptr<const AttentionRule> parse(std::string_view mask, std::string_view score = {});
  // From terms composed in C++: mask is a truth, score a number.
  AttentionRule(rules::Expressions expressions, rules::Term mask, rules::Term score);

  std::uint64_t id() const { return id_; }  // no two rules of a process share one
  const rules::Expressions& expressions() const { return expressions_; }
  rules::Term mask() const { return mask_; }
  rules::Term score() const { return score_; }
  rules::Term slope() const { return slope_; }  // d score / d s

  bool changes_scores() const { return changes_scores_; }
  bool mask_depends_on_head() const { return mask_depends_on_head_; }
  bool wants_prefix_lengths() const { return wants_prefix_lengths_; }
  bool wants_head_bias() const { return wants_head_bias_; }

  // The window (0: unlimited) where the rule is nothing but causal attention within one.
  std::optional<std::int64_t> causal_window() const { return causal_window_; }

  enum class Tile : unsigned char { empty, partial, full };
  // What the mask is over a tile of queries and keys, both ends included. Sound: partial where it cannot tell.
  Tile classify(const rules::Place& place, std::int64_t first_query, std::int64_t last_query, std::int64_t first_key,
                std::int64_t last_key) const;

 private:
  std::optional<std::int64_t> find_causal_window() const;

  rules::Expressions expressions_;
  rules::Term mask_, score_, slope_;
  std::uint64_t id_;
  bool changes_scores_, mask_depends_on_head_, wants_prefix_lengths_, wants_head_bias_;
  std::optional<std::int64_t> causal_window_;
};

}  // namespace inlay::ops
