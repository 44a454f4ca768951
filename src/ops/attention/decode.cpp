#include "ops/attention/decode.h"

#include <algorithm>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

constexpr std::string_view op = "decode_attention";
constexpr std::int64_t largest_head = 256;

void check(const ConstView& out, const ConstView& q, const ConstView& k, const ConstView& v, const DecodeSpec& spec) {
  INLAY_ASSERT(q.rank() == 3 && k.rank() == 4, "{}: q is {} and k is {}, expected [B, heads, D] and a cache of rank 4",
               op, q.shape().str(), k.shape().str());
  check_activation(op, "q", q);
  const std::int64_t heads = q.dim(1), kv_heads = k.dim(1), head_size = q.dim(2);
  INLAY_ASSERT(head_size >= 1 && head_size <= largest_head, "{}: heads of {} elements, expected 1 to {}", op, head_size,
               largest_head);
  INLAY_ASSERT(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0, "{}: {} query heads over {} key/value heads", op,
               heads, kv_heads);
  check_shape(op, "out", out, q.shape());
  check_shape(op, "k", k, {q.dim(0), kv_heads, k.dim(2), head_size});
  check_shape(op, "v", v, k.shape());
  for (const ConstView& view : {out, k, v}) check_dtype(op, "out, k or v", view, q.dtype());
  INLAY_ASSERT(spec.length >= 1 && spec.length <= k.dim(2), "{}: {} positions in a cache for {}", op, spec.length,
               k.dim(2));
  INLAY_ASSERT(spec.window >= 0 && spec.softcap >= 0, "{}: window {} or softcap {} is negative", op, spec.window,
               spec.softcap);
  if (spec.sinks.absent()) return;
  check_shape(op, "sinks", spec.sinks, {heads});
  check_dtype(op, "sinks", spec.sinks, q.dtype());
}

}  // namespace

void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec) {
  check(out, q, k, v, spec);
  const ScratchScope scope(exec.arena());
  View scores;
  if (!exec.on_cuda()) {
    scores = exec.arena().scratch("attention scores", DType::f32, {q.dim(0), q.dim(1), (spec.length + 15) / 16 * 16});
  }
  const std::int64_t seen = spec.window > 0 ? std::min(spec.window, spec.length) : spec.length;
  exec.count(&backend::Work::attention, 4.0 * static_cast<double>(q.shape().size() * seen));
  if (exec.planning() || q.size() == 0) return;
  if (exec.on_cuda()) return cuda::decode_attention(exec, out, q, k, v, spec);
  cpu::kernels().decode_attention(exec, out, q, k, v, spec, scores);
}

}  // namespace inlay::ops
