#include "model/attention_text.h"

#include "core/error.h"

namespace inlay::model {

std::shared_ptr<const ops::AttentionRule> attention_rule(const AttentionText& text, std::int64_t heads,
                                                         std::int64_t window, float softcap) {
  if (!text.given()) {
    if (!text.head_bias.empty()) user_error("attention.head_bias: neither a mask nor a score that uses it is given");
    if (softcap == 0) return nullptr;
  }
  ops::AttentionRule::parse(text.mask, text.score);  // columns of mistakes are those of the text as it was written
  const std::string mask = text.mask.empty() ? "causal" : "(" + text.mask + ")";
  std::string score = text.score;
  if (softcap > 0) score = fmt::format("softcap({}){}{}", softcap, score.empty() ? "" : " then ", score);
  auto rule = ops::AttentionRule::parse(window > 0 ? fmt::format("{} and window({})", mask, window) : mask, score);
  const auto given = static_cast<std::int64_t>(text.head_bias.size());
  if (rule->wants_head_bias() ? given != heads : given != 0) {
    user_error(
        "attention.head_bias: has {} numbers, expected {}", given,
        rule->wants_head_bias() ? fmt::format("{}, one per head", heads) : "none: neither mask nor score uses it");
  }
  return rule;
}

}  // namespace inlay::model
