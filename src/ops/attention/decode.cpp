#include "ops/attention/decode.h"

#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/kernels.h"

namespace inlay::ops {

namespace {

constexpr std::string_view decode_op = "decode_attention";
// Few enough that a step over a short text is one block's work, and a long one's is spread over a whole GPU.
constexpr std::int64_t positions_a_split = 256, most_splits = 32;

void check_places(std::string_view name, const CachePlaces& places, std::int64_t rows) {
  for (const ConstView& view : {places.sequences, places.positions}) {
    check_shape(name, "places", view, {rows});
    check_dtype(name, "places", view, DType::i32);
    INLAY_ASSERT(view.contiguous(), "{}: places are strided", name);
  }
}

void check(const ConstView& out, const ConstView& q, const ConstView& k, const ConstView& v, const DecodeSpec& spec) {
  INLAY_ASSERT(q.rank() == 3 && k.rank() == 4, "{}: q is {} and k is {}, expected [B, heads, D] and a cache of rank 4",
               decode_op, q.shape().str(), k.shape().str());
  check_activation(decode_op, "q", q);
  const std::int64_t heads = q.dim(1), kv_heads = k.dim(1), head_size = q.dim(2);
  INLAY_ASSERT(head_size >= 1 && head_size <= largest_head, "{}: heads of {} elements, expected 1 to {}", decode_op,
               head_size, largest_head);
  INLAY_ASSERT(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0, "{}: {} query heads over {} key/value heads",
               decode_op, heads, kv_heads);
  check_shape(decode_op, "out", out, q.shape());
  check_shape(decode_op, "k", k, {k.dim(0), kv_heads, k.dim(2), head_size});
  check_shape(decode_op, "v", v, k.shape());
  for (const ConstView& view : {out, k, v}) check_dtype(decode_op, "out, k or v", view, q.dtype());
  check_places(decode_op, spec.places, q.dim(0));
  INLAY_ASSERT(spec.window >= 0 && spec.softcap >= 0, "{}: window {} or softcap {} is negative", decode_op, spec.window,
               spec.softcap);
  if (spec.sinks.absent()) return;
  check_shape(decode_op, "sinks", spec.sinks, {heads});
  check_dtype(decode_op, "sinks", spec.sinks, q.dtype());
}

}  // namespace

void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec) {
  check(out, q, k, v, spec);
  const ScratchScope scope(exec.arena());
  const std::int64_t capacity = k.dim(2), splits = decode_splits(capacity);
  View scratch;
  if (!exec.on_cuda()) {
    scratch = exec.arena().scratch("attention scores", DType::f32, {q.dim(0), q.dim(1), (capacity + 15) / 16 * 16});
  } else if (splits > 1) {
    scratch = exec.arena().scratch("parts of attention", DType::f32, {q.dim(0), q.dim(1), splits, q.dim(2) + 2});
  }
  const std::int64_t seen = spec.window > 0 ? std::min(spec.window, capacity) : capacity;
  exec.count(&backend::Work::attention, 4.0 * static_cast<double>(q.shape().size() * seen));
  if (exec.planning() || q.size() == 0) return;
  if (exec.on_cuda()) return cuda::decode_attention(exec, out, q, k, v, spec, scratch);
  cpu::kernels().decode_attention(exec, out, q, k, v, spec, scratch);
}

std::int64_t decode_splits(std::int64_t capacity) {
  return std::clamp<std::int64_t>((capacity + positions_a_split - 1) / positions_a_split, 1, most_splits);
}

void fill_cache(Exec& exec, View keys, View values, const CacheRows& rows, const CachePlaces& places) {
  constexpr std::string_view name = "fill_cache";
  INLAY_ASSERT(keys.rank() == 4 && rows.k.rank() == 3, "{}: rows are {} and the cache is {}", name,
               rows.k.shape().str(), keys.shape().str());
  check_activation(name, "k", rows.k);
  check_shape(name, "values", values, keys.shape());
  for (const ConstView& view : {rows.k, rows.v}) {
    check_shape(name, "k or v", view, {rows.k.dim(0), keys.dim(1), keys.dim(3)});
  }
  for (const ConstView& view : {ConstView(keys), ConstView(values), rows.v}) {
    check_dtype(name, "k, v or the cache", view, rows.k.dtype());
  }
  INLAY_ASSERT(keys.contiguous() && values.contiguous(), "{}: the cache is strided", name);
  check_places(name, places, rows.k.dim(0));
  exec.count_bytes({rows.k, rows.k, rows.v, rows.v});
  if (exec.planning() || rows.k.size() == 0) return;
  if (exec.on_cuda()) return cuda::fill_cache(exec, keys, values, rows, places);
  cpu::kernels().fill_cache(exec, keys, values, rows, places);
}

void advance(Exec& exec, View positions) {
  check_dtype("advance", "positions", positions, DType::i32);
  INLAY_ASSERT(positions.rank() == 1 && positions.contiguous(), "advance: positions are {}", positions.shape().str());
  if (exec.planning() || positions.size() == 0) return;
  if (exec.on_cuda()) return cuda::advance(exec, positions);
  cpu::kernels().advance(exec, positions);
}

}  // namespace inlay::ops
