#include "ops/moe_permute.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_indices(std::string_view op, std::string_view name, const ConstView& view, const Shape& shape) {
  check_shape(op, name, view, shape);
  check_dtype(op, name, view, DType::i32);
  INLAY_ASSERT(view.contiguous(), "{}: {} is strided", op, name);
}

void check_order(std::string_view op, const ExpertOrder& order) {
  INLAY_ASSERT(order.rows.rank() == 2 && order.offsets.rank() == 1 && order.offsets.dim(0) >= 2,
               "{}: rows are {} and offsets {}, expected [T, k] and [E + 1]", op, order.rows.shape().str(),
               order.offsets.shape().str());
  check_indices(op, "rows", order.rows, order.rows.shape());
  check_indices(op, "pairs", order.pairs, {order.rows.shape().size()});
  check_indices(op, "offsets", order.offsets, order.offsets.shape());
}

// `sorted` has a row for every pair, `plain` one for every token.
void check_rows(std::string_view op, const ConstView& sorted, const ConstView& plain, const ExpertOrder& order) {
  check_order(op, order);
  check_activation(op, "a tensor", plain);
  check_dtype(op, "a tensor", sorted, plain.dtype());
  INLAY_ASSERT(plain.rank() == 2, "{}: a tensor is {}, expected [T, H]", op, plain.shape().str());
  check_shape(op, "a tensor by tokens", plain, {order.rows.dim(0), plain.dim(1)});
  check_shape(op, "a tensor by pairs", sorted, {order.pairs.dim(0), plain.dim(1)});
}

void check_weights(std::string_view op, std::string_view name, const ConstView& weights, const ExpertOrder& order) {
  check_shape(op, name, weights, order.rows.shape());
  check_dtype(op, name, weights, DType::f32);
  INLAY_ASSERT(weights.contiguous(), "{}: {} is strided", op, name);
}

void check_bias(std::string_view op, const Combine& combine, const ConstView& plain, const ExpertOrder& order) {
  if (combine.bias.absent()) return;
  check_shape(op, "bias", combine.bias, {order.offsets.dim(0) - 1, plain.dim(1)});
  check_dtype(op, "bias", combine.bias, plain.dtype());
  check_indices(op, "experts", combine.experts, order.rows.shape());
}

}  // namespace

void moe_sort(Exec& exec, const ExpertOrder& order, ConstView experts) {
  constexpr std::string_view op = "moe_sort";
  check_order(op, order);
  check_indices(op, "experts", experts, order.rows.shape());
  const std::int64_t pairs = order.pairs.dim(0), count = order.offsets.dim(0) - 1;
  const ScratchScope scope(exec.arena());
  View scratch;
  if (exec.on_cuda()) {
    scratch = exec.arena().scratch("counts of experts", DType::i32, {(pairs + sort_block - 1) / sort_block, count});
  }
  if (exec.planning()) return;
  if (pairs == 0) return exec.fill_zero(order.offsets);
  if (exec.on_cuda()) return cuda::moe_sort(exec, order, experts, scratch);
  cpu::kernels().moe_sort(exec, order, experts);
}

void moe_gather(Exec& exec, View to, ConstView from, const ExpertOrder& order) {
  check_rows("moe_gather", to, from, order);
  exec.count_bytes({to, to});  // and as many rows of from
  if (exec.planning() || to.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_gather(exec, to, from, order);
  cpu::kernels().moe_gather(exec, to, from, order);
}

void moe_gather_fp8(Exec& exec, const Fp8Forms& to, View room, ConstView from, const ExpertOrder& order) {
  if (!exec.on_cuda()) {
    moe_gather(exec, room, from, order);
    return quantise_fp8(exec, to, room);
  }
  check_rows("moe_gather_fp8", room, from, order);
  if (to.rows.absent() && to.columns.absent()) return;
  exec.count_bytes({room, to.rows.codes, to.columns.codes});  // as many rows of from as room has
  if (!exec.planning() && room.size() != 0) cuda::moe_gather_fp8(exec, to, from, order);
}

void moe_combine(Exec& exec, View out, const Combine& combine, const ExpertOrder& order) {
  constexpr std::string_view op = "moe_combine";
  check_rows(op, combine.y, out, order);
  if (combine.weights) check_weights(op, "weights", combine.weights, order);
  check_bias(op, combine, out, order);
  if (combine.residual) {
    check_shape(op, "residual", combine.residual, out.shape());
    check_dtype(op, "residual", combine.residual, out.dtype());
  }
  exec.count_bytes({combine.y, combine.residual, out});
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_combine(exec, out, combine, order);
  cpu::kernels().moe_combine(exec, out, combine, order);
}

void moe_combine_backward(Exec& exec, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order) {
  constexpr std::string_view op = "moe_combine_backward";
  check_rows(op, dy, dout, order);
  check_weights(op, "dweights", dweights, order);
  check_bias(op, combine, dout, order);
  exec.count_bytes({dout, dy});
  if (exec.planning() || dout.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_combine_backward(exec, dy, dweights, dout, combine, order);
  cpu::kernels().moe_combine_backward(exec, dy, dweights, dout, combine, order);
}

void moe_combine_backward_fp8(Exec& exec, const Fp8Forms& dy, View room, View dweights, ConstView dout,
                              const Combine& combine, const ExpertOrder& order) {
  constexpr std::string_view op = "moe_combine_backward_fp8";
  if (!exec.on_cuda()) {
    moe_combine_backward(exec, room, dweights, dout, combine, order);
    return quantise_fp8(exec, dy, room);
  }
  check_rows(op, room, dout, order);
  check_weights(op, "dweights", dweights, order);
  check_bias(op, combine, dout, order);
  exec.count_bytes({dout});
  if (!exec.planning() && dout.size() != 0) cuda::moe_combine_backward(exec, {}, dweights, dout, combine, order);
  moe_gather_fp8(exec, dy, room, dout, order);
}

void moe_bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows) {
  constexpr std::string_view op = "moe_bias_backward";
  if (mode == Grad::skip) return;
  check_order(op, order);
  check_activation(op, "dy", dy);
  const std::int64_t wanted = rows == RowsOf::order ? order.pairs.dim(0) : order.rows.dim(0);
  INLAY_ASSERT(dy.rank() == 2 && dy.dim(0) == wanted, "{}: dy is {}, expected {} rows", op, dy.shape().str(), wanted);
  const std::int64_t count = order.offsets.dim(0) - 1;
  check_shape(op, "dbias", dbias, {count, dy.dim(1)});
  check_dtype(op, "dbias", dbias, DType::f32);
  INLAY_ASSERT(dbias.contiguous(), "{}: dbias is strided", op);
  if (weights) check_weights(op, "weights", weights, order);
  const ScratchScope scope(exec.arena());
  View scratch;
  if (exec.on_cuda()) {
    scratch = exec.arena().scratch("partial sums of dbias", DType::f32, {bias_slices, count, dy.dim(1)});
  }
  exec.count_bytes({dy});
  if (exec.planning()) return;
  if (dy.size() == 0) {
    if (mode == Grad::overwrite) exec.fill_zero(dbias);
    return;
  }
  if (exec.on_cuda()) return cuda::moe_bias_backward(exec, dbias, mode, dy, weights, order, rows, scratch);
  cpu::kernels().moe_bias_backward(exec, dbias, mode, dy, weights, order, rows);
}

}  // namespace inlay::ops
