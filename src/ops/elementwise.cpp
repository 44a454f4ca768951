#include "ops/elementwise.h"

#include <algorithm>

#include "ops/kernels.h"

namespace inlay::ops {

void add_bias(Exec& exec, View y, ConstView bias) {
  constexpr std::string_view op = "add_bias";
  check_activation(op, "y", y);
  INLAY_ASSERT(y.rank() == 2, "add_bias: y is {}, expected [T, N]", y.shape().str());
  check_shape(op, "bias", bias, {y.dim(1)});
  check_dtype(op, "bias", bias, y.dtype());
  exec.count_bytes({y, y});
  if (exec.planning() || y.size() == 0) return;
  if (exec.on_cuda()) return cuda::add_bias(exec, y, bias);
  cpu::kernels().add_bias(exec, y, bias);
}

void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy) {
  constexpr std::string_view op = "bias_backward";
  if (mode == Grad::skip) return;
  check_activation(op, "dy", dy);
  INLAY_ASSERT(dy.rank() == 2, "bias_backward: dy is {}, expected [T, N]", dy.shape().str());
  check_shape(op, "dbias", dbias, {dy.dim(1)});
  check_dtype(op, "dbias", dbias, DType::f32);
  ScratchScope scope(exec.arena());
  const std::int64_t blocks = std::min<std::int64_t>(dy.dim(0), 512);
  const View scratch = exec.arena().scratch("partial sums of dbias", DType::f32, {blocks, dy.dim(1)});
  exec.count_bytes({dy});
  if (exec.planning()) return;
  if (dy.size() == 0) {
    if (mode == Grad::overwrite) exec.fill_zero(dbias);
    return;
  }
  if (exec.on_cuda()) return cuda::bias_backward(exec, dbias, mode, dy, scratch);
  cpu::kernels().bias_backward(exec, dbias, mode, dy, scratch);
}

void add(Exec& exec, View y, ConstView x) {
  constexpr std::string_view op = "add";
  check_activation(op, "y", y);
  check_shape(op, "x", x, y.shape());
  check_dtype(op, "x", x, y.dtype());
  INLAY_ASSERT(y.rank() <= 3, "add: y is {}, expected at most three axes", y.shape().str());
  exec.count_bytes({y, y, x});
  if (exec.planning() || y.size() == 0) return;
  if (exec.on_cuda()) return cuda::add(exec, y, x);
  cpu::kernels().add(exec, y, x);
}

void scale(Exec& exec, View y, ConstView x, float factor) {
  constexpr std::string_view op = "scale";
  check_activation(op, "y", y);
  check_shape(op, "x", x, y.shape());
  check_dtype(op, "x", x, y.dtype());
  INLAY_ASSERT(y.rank() <= 3, "scale: y is {}, expected at most three axes", y.shape().str());
  exec.count_bytes({y, x});
  if (exec.planning() || y.size() == 0) return;
  if (exec.on_cuda()) return cuda::scale(exec, y, x, factor);
  cpu::kernels().scale(exec, y, x, factor);
}

void softcap(Exec& exec, View x, float cap) {
  check_dtype("softcap", "x", x, DType::f32);
  INLAY_ASSERT(x.contiguous() && cap > 0, "softcap: x is {}, the cap {}", x.shape().str(), cap);
  exec.count_bytes({x, x});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::softcap(exec, x, cap);
  cpu::kernels().softcap(exec, x, cap);
}

void cast(Exec& exec, View to, ConstView from) {
  constexpr std::string_view op = "cast";
  for (const ConstView& view : {ConstView(to), from}) {
    INLAY_ASSERT(is_floating(view.dtype()), "cast: a tensor is {}, expected fp64, fp32, bf16 or fp16",
                 name_of(view.dtype()));
  }
  check_shape(op, "from", from, to.shape());
  INLAY_ASSERT(to.rank() <= 3 || (to.contiguous() && from.contiguous()),
               "cast: {} is strided over more than three axes", to.shape().str());
  exec.count_bytes({from, to});
  if (exec.planning() || to.size() == 0) return;
  if (exec.on_cuda()) return cuda::cast(exec, to, from);
  cpu::kernels().cast(exec, to, from);
}

void scale_rows(Exec& exec, View x, ConstView factors) {
  constexpr std::string_view op = "scale_rows";
  INLAY_ASSERT(x.rank() == 2, "scale_rows: x is {}, expected [R, C]", x.shape().str());
  INLAY_ASSERT(x.dtype() == DType::f32 || x.dtype() == DType::f64, "scale_rows: x is {}, expected fp32 or fp64",
               name_of(x.dtype()));
  check_shape(op, "factors", factors, {x.dim(0)});
  check_dtype(op, "factors", factors, x.dtype());
  exec.count_bytes({x, x});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::scale_rows(exec, x, factors);
  cpu::kernels().scale_rows(exec, x, factors);
}

namespace {

// `all` holds the rows that `rows` names, `some` one row for each entry of it.
void check_selection(std::string_view op, ConstView all, ConstView some, ConstView rows) {
  check_activation(op, "the tensor", all);
  check_dtype(op, "the selected rows", some, all.dtype());
  check_dtype(op, "rows", rows, DType::i32);
  INLAY_ASSERT(all.rank() == 2 && rows.rank() == 1, "{}: a tensor of {} and rows of {}", op, all.shape().str(),
               rows.shape().str());
  check_shape(op, "the selected rows", some, {rows.dim(0), all.dim(1)});
}

}  // namespace

void gather_rows(Exec& exec, View to, ConstView from, ConstView rows) {
  check_selection("gather_rows", from, to, rows);
  exec.count_bytes({to, to});  // and as many rows of from
  if (exec.planning() || to.size() == 0) return;
  if (exec.on_cuda()) return cuda::gather_rows(exec, to, from, rows);
  cpu::kernels().gather_rows(exec, to, from, rows);
}

void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows) {
  check_selection("scatter_rows", to, from, rows);
  exec.count_bytes({from, to});
  if (exec.planning() || to.size() == 0) return;
  if (exec.on_cuda()) return cuda::scatter_rows(exec, to, from, rows);
  cpu::kernels().scatter_rows(exec, to, from, rows);
}

}  // namespace inlay::ops
