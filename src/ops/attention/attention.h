#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/check.h"

// Causal attention over packed documents: a token sees itself and earlier tokens of its own document, at most `window`
// of them, itself included. Query head h reads key/value head h / (heads / kv_heads). A rule puts another mask in the
// place of that, and may change the scores.
namespace inlay::ops {

class AttentionRule;  // ops/attention/rules/rule.h

inline constexpr std::int64_t largest_head = 256;  // elements

struct AttentionSpec {
  float scale = 1.0f;                             // multiplies q·k
  std::int64_t window = 0;                        // 0: unlimited
  ConstView cu_seqlens;                           // device, int32 [documents + 1]
  std::span<const std::int32_t> host_cu_seqlens;  // the same on the host; when planning, a representative batch
  bool deterministic = true;                      // CUDA backward: the fixed-order variant
  const AttentionRule* rule = nullptr;            // in the place of causal and window; absent: these
  ConstView prefix_lengths;                       // device, int32 [documents], where the rule wants them
  ConstView head_bias;                            // fp32 [heads], where the rule wants it; a constant, without gradient
  ConstView sinks;  // [heads] in q's dtype: a logit beside each head's scores that gives no value; absent: none
};

// q [T, heads, D]; k, v [T, kv_heads, D], tokens may be strided; out like q; lse fp32 [T, heads]: the natural logarithm
// of the sum of exponentials of the scaled scores, and of the sink where there is one. A query that sees nothing has an
// out of zeros and an lse of minus infinity.
struct AttentionTensors {
  ConstView q, k, v;
  View out, lse;
};
void attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec);

// dq, dk, dv are overwritten; they may be strided like q, k, v, and must not overlap them. dsinks (fp32 [heads]) is
// written as its mode says, where there are sinks.
struct AttentionGrads {
  View dq, dk, dv;
  View dsinks;
  Grad dsinks_mode = Grad::skip;
};
void attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec);

// The backends, without sinks. Everything is checked, nothing is planned here; scratch is u8, aligned to 256. How much
// they want of it depends on the shapes and on the rule, never on where documents begin, so that a plan made with one
// batch holds for every batch of as many tokens.
namespace cpu {
std::size_t attention_forward_scratch_bytes(const AttentionTensors& tensors, const AttentionSpec& spec);
std::size_t attention_backward_scratch_bytes(const AttentionTensors& tensors, const AttentionSpec& spec);
void attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, View scratch);
void attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec, View scratch);
}  // namespace cpu

namespace cuda {
void attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, View scratch);
void attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec, View scratch);
}  // namespace cuda

}  // namespace inlay::ops
