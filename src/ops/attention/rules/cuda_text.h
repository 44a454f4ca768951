#pragma once

#include <string>

#include "ops/attention/rules/rule.h"

namespace inlay::ops::rules {

enum class Pass { forward, backward };

// The program that is compiled at run time for a rule: the rule as a class, and the pass's kernels over it. Forward has
// attention_forward, backward has attention_query_gradients and attention_key_gradients; an evaluation that never goes
// backward never compiles the latter.
std::string cuda_program(const AttentionRule& rule, Pass pass, int head_size);

}  // namespace inlay::ops::rules
