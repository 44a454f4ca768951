#include "ops/factors.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_master(std::string_view op, const Master& master, const Shape& shape) {
  check_activation(op, "offset", master.value);
  check_shape(op, "offset", master.value, shape);
  INLAY_ASSERT((master.value.dtype() == DType::bf16) == static_cast<bool>(master.low),
               "{}: bf16 offsets, and only they, have a low half", op);
  if (master.low) check_shape(op, "low", master.low, shape);
  INLAY_ASSERT(master.value.contiguous(), "{}: a strided offset", op);
}

void check_scale(std::string_view op, ConstView scale, std::int64_t rows) {
  check_shape(op, "scale", scale, {rows});
  check_dtype(op, "scale", scale, DType::f32);
}

}  // namespace

void add_offset(Exec& exec, View out, ConstView base, const Master& offset) {
  constexpr std::string_view op = "add_offset";
  check_activation(op, "base", base);
  check_shape(op, "out", out, base.shape());
  check_dtype(op, "out", out, base.dtype());
  check_master(op, offset, base.shape());
  INLAY_ASSERT(out.contiguous() && base.contiguous(), "{}: a strided tensor", op);
  exec.count_bytes({base, offset.value, offset.low, out});
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::add_offset(exec, out, base, offset);
  cpu::kernels().add_offset(exec, out, base, offset);
}

void row_dot(Exec& exec, View out, ConstView a, ConstView b) {
  constexpr std::string_view op = "row_dot";
  check_activation(op, "a", a);
  check_activation(op, "b", b);
  INLAY_ASSERT(a.rank() == 2, "{}: a is {}, expected a matrix", op, a.shape().str());
  check_shape(op, "b", b, a.shape());
  check_scale(op, out, a.dim(0));
  exec.count_bytes({a, b});
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::row_dot(exec, out, a, b);
  cpu::kernels().row_dot(exec, out, a, b);
}

void change_rows(Exec& exec, View scaled, View change, const FactorRows& rows) {
  constexpr std::string_view op = "change_rows";
  check_activation(op, "base", rows.base);
  INLAY_ASSERT(rows.base.rank() == 2, "{}: base is {}, expected a matrix", op, rows.base.shape().str());
  check_master(op, rows.offset, rows.base.shape());
  check_scale(op, rows.scale, rows.base.dim(0));
  check_scale(op, rows.scale_offset, rows.base.dim(0));
  for (const ConstView& view : {ConstView(scaled), ConstView(change)}) {
    check_shape(op, "a result", view, rows.base.shape());
    check_dtype(op, "a result", view, rows.base.dtype());
    INLAY_ASSERT(view.contiguous() && rows.base.contiguous(), "{}: a strided tensor", op);
  }
  exec.count_bytes({rows.base, rows.offset.value, rows.offset.low, scaled, change});
  if (exec.planning() || scaled.size() == 0) return;
  if (exec.on_cuda()) return cuda::change_rows(exec, scaled, change, rows);
  cpu::kernels().change_rows(exec, scaled, change, rows);
}

}  // namespace inlay::ops
