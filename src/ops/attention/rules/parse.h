#pragma once

#include <string_view>

#include "ops/attention/rules/expression.h"

// The language of rules:
//   mask   causal, window(n), document, prefix, true, false; not, and, or; comparisons of numbers
//   score  numbers over s; softcap(c), alibi, alibi(slope), head_bias; stages one after the other: "softcap(50) then
//   alibi" both   q, k: positions in the document; h, heads; q_doc, k_doc: the document's index; length: its tokens;
//          prefix_length; bias: the head's; + - * / // %; min max abs floor tanh exp log; where(truth, a, b)
// Errors are UserErrors that name what is read ("mask") and the column.
namespace inlay::ops::rules {

Term parse_mask(Expressions& into, std::string_view text);
Term parse_score(Expressions& into, std::string_view text);

}  // namespace inlay::ops::rules
