#pragma once

#include "ops/softmax_gradient.h"

// Weights of tokens that the model's own prediction decides about. They are factors of the loss, not parts of it: no
// gradient goes through them (docs/objectives.md).
namespace inlay::ops {

enum class TokenRule : std::uint8_t {
  none,
  dft,   // p_y
  eaft,  // the entropy of the most_likely largest probabilities, made to sum to one, by its largest value
         // ln(most_likely)
  talr,  // max(p_y^(1 / temperature), least)
};

struct TokenRuleSpec {
  TokenRule rule = TokenRule::none;
  std::int32_t most_likely = 20;  // eaft; of smaller vocabularies all
  ConstView temperature = {};     // talr: fp32 [1] on the device
  float least = 0.01f;            // talr
};

// A chunk of logits whose row statistics are known.
struct RuledRows {
  ConstView logits;     // [n, V], as SoftmaxChunk has them
  ConstView positions;  // int32 [n]; absent: first, first + 1, ...
  std::int64_t first = 0;
  ConstView token_weights;   // fp32 [T], or absent: 1
  RowStatistics statistics;  // of these rows
  float softcap = 0;
  View weights;  // fp32 [T]: at the positions of these rows = token weight · what the rule says
};

void token_rule(Exec& exec, const RuledRows& rows, const TokenRuleSpec& spec);

namespace cpu {
void token_rule(Exec& exec, const RuledRows& rows, const TokenRuleSpec& spec);
}
namespace cuda {
void token_rule(Exec& exec, const RuledRows& rows, const TokenRuleSpec& spec);
}

}  // namespace inlay::ops
