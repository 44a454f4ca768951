#pragma once

#include <string>

#include "ops/attention/rules/rule.h"

namespace inlay::ops::rules {

enum class Pass { forward, backward };

// The program that is compiled at run time for a rule: the rule as a class, and the pass's kernels over it. Forward has
// attention_forward, backward has attention_query_gradients and attention_key_gradients; an evaluation that never goes
// backward never compiles the latter. Where the gradients of keys and values are apart, the latter are those of
// attention_value_gradients.
std::string cuda_program(const AttentionRule& rule, Pass pass, int head_size);
bool gradients_apart(int head_size);  // heads so wide that registers hold one of the two

}  // namespace inlay::ops::rules
