#include "ops/rms_norm.h"

#include <algorithm>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_norm(std::string_view op, ConstView out, ConstView x, ConstView weight) {
  check_activation(op, "x", x);
  INLAY_ASSERT(x.rank() == 2 || x.rank() == 3, "{}: x is {}, expected a matrix or [T, heads, D]", op, x.shape().str());
  check_shape(op, "out", out, x.shape());
  check_dtype(op, "out", out, x.dtype());
  check_shape(op, "weight", weight, {x.cols()});
  check_dtype(op, "weight", weight, x.dtype());
}

}  // namespace

void rms_norm_forward(Exec& exec, View out, ConstView x, ConstView weight, NormSpec norm) {
  check_norm("rms_norm_forward", out, x, weight);
  exec.count_bytes({x, out});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::rms_norm_forward(exec, out, x, weight, norm);
  cpu::kernels().rms_norm_forward(exec, out, x, weight, norm);
}

void residual_rms_norm_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm) {
  constexpr std::string_view op = "residual_rms_norm_forward";
  check_norm(op, out, x, weight);
  check_shape(op, "sum", sum, x.shape());
  check_dtype(op, "sum", sum, x.dtype());
  check_shape(op, "delta", delta, x.shape());
  check_dtype(op, "delta", delta, x.dtype());
  exec.count_bytes({x, delta, sum, out});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::residual_rms_norm_forward(exec, out, sum, x, delta, weight, norm);
  cpu::kernels().residual_rms_norm_forward(exec, out, sum, x, delta, weight, norm);
}

void rms_norm_backward(Exec& exec, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm) {
  constexpr std::string_view op = "rms_norm_backward";
  check_norm(op, dout, x, weight);
  if (grads.dx_mode != Grad::skip) {
    check_shape(op, "dx", grads.dx, x.shape());
    check_dtype(op, "dx", grads.dx, x.dtype());
  }
  const bool wants_dweight = grads.dweight_mode != Grad::skip;
  ScratchScope scope(exec.arena());
  View scratch;
  if (wants_dweight) {
    check_shape(op, "dweight", grads.dweight, {x.cols()});
    check_dtype(op, "dweight", grads.dweight, DType::f32);
    const std::int64_t blocks = std::min<std::int64_t>(x.rows(), 512);
    scratch = exec.arena().scratch("partial sums of dweight", DType::f32, {blocks, x.cols()});
  }
  exec.count_bytes({dout, x, grads.dx, read_first(grads.dx, grads.dx_mode)});
  if (exec.planning()) return;
  if (x.size() == 0) {
    if (grads.dweight_mode == Grad::overwrite) exec.fill_zero(grads.dweight);
    return;
  }
  if (grads.dx_mode == Grad::skip && !wants_dweight) return;
  if (exec.on_cuda()) return cuda::rms_norm_backward(exec, grads, dout, x, weight, norm, scratch);
  cpu::kernels().rms_norm_backward(exec, grads, dout, x, weight, norm, scratch);
}

}  // namespace inlay::ops
