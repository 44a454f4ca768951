#pragma once

#include "ops/check.h"

// Sinks: a learned logit σ_h beside the scores of every head, which takes its share of the softmax and gives no value.
// They stand apart from the attention kernels: these compute without them, then out and lse are corrected, and the
// ordinary backward pass fed with the corrected ones is exact.
namespace inlay::ops {

// lse = L = log(exp(lse) + exp(σ)), out *= exp(lse before - L); out [T, heads, D], lse fp32 [T, heads], sinks [heads]
// in out's dtype.
void attention_sinks_forward(Exec& exec, View out, View lse, ConstView sinks);

// dsinks (fp32 [heads]) = or += -Σ_t exp(σ - L_t) · (dout_t · out_t), in a fixed order; out and lse as corrected.
void attention_sinks_backward(Exec& exec, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// scratch: fp32 [blocks, heads] for partial sums.
namespace cpu {
void attention_sinks_forward(Exec& exec, View out, View lse, ConstView sinks);
void attention_sinks_backward(Exec& exec, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks, View scratch);
}  // namespace cpu

namespace cuda {
void attention_sinks_forward(Exec& exec, View out, View lse, ConstView sinks);
void attention_sinks_backward(Exec& exec, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks, View scratch);
}  // namespace cuda

}  // namespace inlay::ops
