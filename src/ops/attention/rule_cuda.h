#pragma once

#include "ops/attention/attention.h"

// Attention by a rule on the tensor cores: kernels that are compiled for the rule when it is first used, bf16, heads of
// 64, 96, 128 and 256. Always in a fixed order.
namespace inlay::ops::cuda {

// false: it has to be interpreted, because of the tensors or the GPU, or because nothing could be compiled (which is
// said once).
bool compiled_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec);

// delta is scratch, fp32 [tokens, heads].
bool compiled_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout,
                                 const AttentionTensors& tensors, const AttentionSpec& spec, float* delta);

// The rule of plain causal attention within a window (0: unlimited), for where these kernels stand in for others.
const AttentionRule& causal_rule(Exec& exec, std::int64_t window);

// 16 bytes at a time may be moved of every row of every tensor.
bool in_eights(std::initializer_list<ConstView> views);

}  // namespace inlay::ops::cuda
