#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/attention/rules/rule.h"

namespace inlay::model {

// Attention as a configuration asks for it, for all layers; empty: the model's own, which is causal.
struct AttentionText {
  std::string mask;              // which pairs are seen: "causal or prefix"
  std::string score;             // what becomes of a score: "softcap(50)"
  std::vector<float> head_bias;  // one a head, where the texts speak of head_bias

  bool given() const { return !mask.empty() || !score.empty(); }
};

// The rule of a layer, whose own window holds all the same; nothing where no text is given. Mistakes in the texts, and
// a head_bias that does not fit, are UserErrors.
std::shared_ptr<const ops::AttentionRule> attention_rule(const AttentionText& text, std::int64_t heads,
                                                         std::int64_t window);

}  // namespace inlay::model
