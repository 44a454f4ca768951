#pragma once

#include "ops/attention/attention.h"

namespace inlay::ops {

// Pairs of a query and a key that a head sees in the documents of spec.host_cu_seqlens. By a rule, an estimate: of
// tiles that its mask sees in part a few pairs are asked; prefixes and biases, which a plan does not know, count as 0.
double attention_pairs(const AttentionSpec& spec, std::int64_t heads);

}  // namespace inlay::ops
