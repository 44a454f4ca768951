#include "ops/columns.h"

#include <algorithm>

#include "ops/factors.h"
#include "ops/kernels.h"

namespace inlay::ops {

void column_dot(Exec& exec, View out, Grad mode, ConstView a, ConstView b) {
  constexpr std::string_view op = "column_dot";
  if (mode == Grad::skip) return;
  check_activation(op, "a", a);
  check_activation(op, "b", b);
  INLAY_ASSERT(a.rank() == 2, "{}: a is {}, expected [T, N]", op, a.shape().str());
  check_shape(op, "b", b, a.shape());
  check_shape(op, "out", out, {a.dim(1)});
  check_dtype(op, "out", out, DType::f32);
  ScratchScope scope(exec.arena());
  const std::int64_t blocks = std::min<std::int64_t>(a.dim(0), 512);
  const View scratch = exec.arena().scratch("partial sums of columns", DType::f32, {blocks, a.dim(1)});
  exec.count_bytes({a, b});
  if (exec.planning()) return;
  if (a.size() == 0) {
    if (mode == Grad::overwrite) exec.fill_zero(out);
    return;
  }
  if (exec.on_cuda()) return cuda::column_dot(exec, out, mode, a, b, scratch);
  cpu::kernels().column_dot(exec, out, mode, a, b, scratch);
}

void scale_columns(Exec& exec, View y, ConstView x, ConstView factors) {
  constexpr std::string_view op = "scale_columns";
  check_activation(op, "x", x);
  INLAY_ASSERT(x.rank() == 2, "{}: x is {}, expected [T, N]", op, x.shape().str());
  check_shape(op, "y", y, x.shape());
  check_dtype(op, "y", y, x.dtype());
  check_shape(op, "factors", factors, {x.dim(1)});
  check_dtype(op, "factors", factors, DType::f32);
  exec.count_bytes({x, y});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::scale_columns(exec, y, x, factors);
  cpu::kernels().scale_columns(exec, y, x, factors);
}

void row_norms(Exec& exec, View out, ConstView x) {
  row_dot(exec, out, x, x);
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::square_roots(exec, out);
  cpu::kernels().square_roots(exec, out);
}

void quotients(Exec& exec, View out, ConstView a, ConstView b) {
  constexpr std::string_view op = "quotients";
  INLAY_ASSERT(out.rank() == 1, "{}: out is {}, expected [n]", op, out.shape().str());
  check_shape(op, "a", a, out.shape());
  check_shape(op, "b", b, out.shape());
  for (const ConstView& view : {ConstView(out), a, b}) check_dtype(op, "an operand", view, DType::f32);
  exec.count_bytes({out, a, b});
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::quotients(exec, out, a, b);
  cpu::kernels().quotients(exec, out, a, b);
}

}  // namespace inlay::ops
