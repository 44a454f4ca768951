#include "ops/attention/attention.h"

#include "ops/attention/cuda_scratch.h"
#include "ops/attention/pairs.h"
#include "ops/attention/rules/rule.h"
#include "ops/attention/sinks.h"
#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_head_tensor(std::string_view op, std::string_view name, const ConstView& view, const Shape& shape,
                       DType dtype) {
  check_shape(op, name, view, shape);
  check_dtype(op, name, view, dtype);
  INLAY_ASSERT(view.stride(2) == 1, "{}: the elements of a head of {} are not contiguous", op, name);
}

void check_rule(std::string_view op, const AttentionSpec& spec, std::int64_t heads) {
  constexpr std::int64_t longest = 1 << 24;  // positions are fp32
  const std::span<const std::int32_t> offsets = spec.host_cu_seqlens;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    INLAY_ASSERT(offsets[i] - offsets[i - 1] <= longest, "{}: document {} is too long for a rule", op, i - 1);
  }
  if (spec.rule->wants_prefix_lengths()) {
    check_dtype(op, "prefix_lengths", spec.prefix_lengths, DType::i32);
    check_shape(op, "prefix_lengths", spec.prefix_lengths, {static_cast<std::int64_t>(offsets.size()) - 1});
  }
  if (spec.rule->wants_head_bias()) {
    check_dtype(op, "head_bias", spec.head_bias, DType::f32);
    check_shape(op, "head_bias", spec.head_bias, {heads});
  }
}

// A rule that says no more than causal and window do needs none of what rules need.
AttentionSpec simplified(AttentionSpec spec) {
  const std::optional<std::int64_t> window = spec.rule == nullptr ? std::nullopt : spec.rule->causal_window();
  if (window) {
    spec.rule = nullptr;
    spec.window = *window;
  }
  return spec;
}

void check(std::string_view op, const Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  const ConstView &q = tensors.q, &k = tensors.k;
  INLAY_ASSERT(q.rank() == 3 && k.rank() == 3, "{}: q is {} and k is {}, expected [T, heads, D]", op, q.shape().str(),
               k.shape().str());
  check_activation(op, "q", q);
  const std::int64_t tokens = q.dim(0), heads = q.dim(1), kv_heads = k.dim(1), head_size = q.dim(2);
  INLAY_ASSERT(head_size >= 1 && head_size <= largest_head, "{}: heads of {} elements, expected 1 to {}", op, head_size,
               largest_head);
  INLAY_ASSERT(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0, "{}: {} query heads over {} key/value heads", op,
               heads, kv_heads);
  INLAY_ASSERT(spec.window >= 0, "{}: window {} is negative", op, spec.window);
  check_head_tensor(op, "q", q, {tokens, heads, head_size}, q.dtype());
  check_head_tensor(op, "k", k, {tokens, kv_heads, head_size}, q.dtype());
  check_head_tensor(op, "v", tensors.v, {tokens, kv_heads, head_size}, q.dtype());
  check_head_tensor(op, "out", tensors.out, {tokens, heads, head_size}, q.dtype());
  check_shape(op, "lse", tensors.lse, {tokens, heads});
  check_dtype(op, "lse", tensors.lse, DType::f32);
  if (exec.planning()) return;  // the offsets are then only representative

  const std::span<const std::int32_t> offsets = spec.host_cu_seqlens;
  INLAY_ASSERT(!offsets.empty() && offsets.front() == 0 && offsets.back() == tokens,
               "{}: document offsets must run from 0 to {} tokens", op, tokens);
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    INLAY_ASSERT(offsets[i - 1] <= offsets[i], "{}: document {} ends before it begins", op, i - 1);
  }
  if (spec.rule != nullptr) check_rule(op, spec, heads);
  if (!exec.on_cuda()) return;
  check_dtype(op, "cu_seqlens", spec.cu_seqlens, DType::i32);
  check_shape(op, "cu_seqlens", spec.cu_seqlens, {static_cast<std::int64_t>(offsets.size())});
}

// Forward it is two products, scores and values; backward five: the scores again, and the gradients of all four.
void count_products(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, int products) {
  if (!exec.planning()) return;
  const std::int64_t heads = tensors.q.dim(1);
  exec.count(&backend::Work::attention,
             2.0 * products * attention_pairs(spec, heads) * static_cast<double>(heads * tensors.q.dim(2)));
}

std::size_t forward_scratch_bytes(const Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  // cuDNN wants little for packed documents: some room.
  return exec.on_cuda() ? std::size_t{4} << 20 : cpu::kernels().attention_forward_scratch_bytes(tensors, spec);
}

std::size_t backward_scratch_bytes(const Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  if (!exec.on_cuda()) return cpu::kernels().attention_backward_scratch_bytes(tensors, spec);
  const ConstView& q = tensors.q;
  const std::int64_t tokens = q.dim(0), heads = q.dim(1), head_size = q.dim(2);
  const bool cudnn = q.dtype() == DType::bf16 && head_size % 8 == 0;
  return cuda::attention_backward_scratch_bytes(tokens, {heads, tensors.k.dim(1), head_size}, cudnn,
                                                spec.deterministic);
}

}  // namespace

void attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& wanted) {
  const AttentionSpec spec = simplified(wanted);
  check("attention_forward", exec, tensors, spec);
  const ScratchScope scope(exec.arena());
  const std::size_t bytes = forward_scratch_bytes(exec, tensors, spec);
  const View scratch = exec.arena().scratch("attention forward", DType::u8, {static_cast<std::int64_t>(bytes)});
  count_products(exec, tensors, spec, 2);
  if (!exec.planning() && tensors.q.size() > 0) {
    const auto run = exec.on_cuda() ? cuda::attention_forward : cpu::kernels().attention_forward;
    run(exec, tensors, spec, scratch);
  }
  if (spec.sinks) attention_sinks_forward(exec, tensors.out, tensors.lse, spec.sinks);
}

void attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& wanted) {
  constexpr std::string_view op = "attention_backward";
  const AttentionSpec spec = simplified(wanted);
  check(op, exec, tensors, spec);
  const DType dtype = tensors.q.dtype();
  check_head_tensor(op, "dout", dout, tensors.q.shape(), dtype);
  check_head_tensor(op, "dq", grads.dq, tensors.q.shape(), dtype);
  check_head_tensor(op, "dk", grads.dk, tensors.k.shape(), dtype);
  check_head_tensor(op, "dv", grads.dv, tensors.k.shape(), dtype);
  if (spec.sinks) {
    attention_sinks_backward(exec, grads.dsinks, grads.dsinks_mode, dout, tensors.out, tensors.lse, spec.sinks);
  }
  const ScratchScope scope(exec.arena());
  const std::size_t bytes = backward_scratch_bytes(exec, tensors, spec);
  const View scratch = exec.arena().scratch("attention backward", DType::u8, {static_cast<std::int64_t>(bytes)});
  count_products(exec, tensors, spec, 5);
  if (exec.planning() || tensors.q.size() == 0) return;
  if (exec.on_cuda()) {
    cuda::attention_backward(exec, grads, dout, tensors, spec, scratch);
  } else {
    cpu::kernels().attention_backward(exec, grads, dout, tensors, spec, scratch);
  }
}

}  // namespace inlay::ops
