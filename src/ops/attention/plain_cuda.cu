#include "ops/attention/plain_cuda.h"

#include "ops/attention/plain_launch.cuh"

namespace inlay::ops::cuda {

namespace {

plain::CausalWindow rule_of(const AttentionSpec& spec) {
  constexpr std::int64_t unlimited = std::int64_t{1} << 30;
  return {static_cast<std::int32_t>(spec.window == 0 ? unlimited : std::min(spec.window, unlimited))};
}

}  // namespace

void plain_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  const plain::CausalWindow rule = rule_of(spec);
  if (tensors.q.dtype() == DType::bf16) return plain::forward<__nv_bfloat16>(exec, tensors, spec, rule);
  plain::forward<float>(exec, tensors, spec, rule);
}

void plain_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                              const AttentionSpec& spec, float* delta) {
  const plain::CausalWindow rule = rule_of(spec);
  if (tensors.q.dtype() == DType::bf16) {
    return plain::backward<__nv_bfloat16>(exec, grads, dout, tensors, spec, rule, delta);
  }
  plain::backward<float>(exec, grads, dout, tensors, spec, rule, delta);
}

void plain_attention_delta(Exec& exec, ConstView dout, const AttentionTensors& tensors, const AttentionSpec& spec,
                           float* delta) {
  INLAY_ASSERT(tensors.q.dtype() == DType::bf16, "attention: delta is wanted of {}", name_of(tensors.q.dtype()));
  const auto task = plain::backward_task<__nv_bfloat16>({}, dout, tensors, spec, rule_of(spec), delta);
  plain::compute_delta(exec, task, tensors.q.dim(0));
}

}  // namespace inlay::ops::cuda
