#include "ops/dropout.h"

#include "ops/kernels.h"

namespace inlay::ops {

void dropout(Exec& exec, View y, Grad mode, ConstView x, const Dropout& which) {
  constexpr std::string_view op = "dropout";
  if (mode == Grad::skip) return;
  INLAY_ASSERT(which.p >= 0 && which.p < 1 && which.first_row >= 0, "{}: p is {}, the first row {}", op, which.p,
               which.first_row);
  check_activation(op, "x", x);
  INLAY_ASSERT(x.rank() == 2, "{}: x is {}, expected a matrix", op, x.shape().str());
  check_shape(op, "y", y, x.shape());
  check_dtype(op, "y", y, x.dtype());
  if (!which.rows.absent()) {
    check_shape(op, "rows", which.rows, {x.dim(0)});
    check_dtype(op, "rows", which.rows, DType::i32);
  }
  exec.count_bytes({x, y, read_first(y, mode), which.rows});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::dropout(exec, y, mode, x, which);
  cpu::kernels().dropout(exec, y, mode, x, which);
}

}  // namespace inlay::ops
