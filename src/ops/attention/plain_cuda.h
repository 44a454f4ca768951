#pragma once

#include "ops/attention/attention.h"

// Attention by our own kernels: any head size, fp32 and bf16, always in a fixed order. The route where cuDNN has none.
namespace inlay::ops::cuda {

void plain_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec);

// delta is scratch, fp32 [tokens, heads].
void plain_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                              const AttentionSpec& spec, float* delta);

// delta = dout · out of every row, bf16.
void plain_attention_delta(Exec& exec, ConstView dout, const AttentionTensors& tensors, const AttentionSpec& spec,
                           float* delta);

// The same by a rule (spec.rule), interpreted pair by pair on the device: slow, and needs no compiler.
void interpreted_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec);
void interpreted_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout,
                                    const AttentionTensors& tensors, const AttentionSpec& spec, float* delta);

}  // namespace inlay::ops::cuda
