#include "ops/attention/sinks.h"

#include <algorithm>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check(std::string_view op, const ConstView& out, const ConstView& lse, const ConstView& sinks) {
  check_activation(op, "out", out);
  INLAY_ASSERT(out.rank() == 3, "{}: out is {}, expected [T, heads, D]", op, out.shape().str());
  check_shape(op, "lse", lse, {out.dim(0), out.dim(1)});
  check_dtype(op, "lse", lse, DType::f32);
  check_shape(op, "sinks", sinks, {out.dim(1)});
  check_dtype(op, "sinks", sinks, out.dtype());
}

}  // namespace

void attention_sinks_forward(Exec& exec, View out, View lse, ConstView sinks) {
  check("attention_sinks_forward", out, lse, sinks);
  exec.count_bytes({out, out});
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::attention_sinks_forward(exec, out, lse, sinks);
  cpu::kernels().attention_sinks_forward(exec, out, lse, sinks);
}

void attention_sinks_backward(Exec& exec, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks) {
  constexpr std::string_view op = "attention_sinks_backward";
  if (mode == Grad::skip) return;
  check(op, out, lse, sinks);
  check_shape(op, "dout", dout, out.shape());
  check_dtype(op, "dout", dout, out.dtype());
  check_shape(op, "dsinks", dsinks, sinks.shape());
  check_dtype(op, "dsinks", dsinks, DType::f32);
  const ScratchScope scope(exec.arena());
  const std::int64_t blocks = std::min<std::int64_t>(out.dim(0), 64);
  const View scratch = exec.arena().scratch("partial sums of dsinks", DType::f32, {blocks, out.dim(1)});
  exec.count_bytes({out, dout});
  if (exec.planning()) return;
  if (out.size() == 0) {
    if (mode == Grad::overwrite) exec.fill_zero(dsinks);
    return;
  }
  if (exec.on_cuda()) return cuda::attention_sinks_backward(exec, dsinks, mode, dout, out, lse, sinks, scratch);
  cpu::kernels().attention_sinks_backward(exec, dsinks, mode, dout, out, lse, sinks, scratch);
}

}  // namespace inlay::ops
