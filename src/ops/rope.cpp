#include "ops/rope.h"

#include "ops/kernels.h"

namespace inlay::ops {

void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation, RopePairs pairs) {
  constexpr std::string_view op = "rope";
  check_activation(op, "x", x);
  INLAY_ASSERT(x.rank() == 3, "rope: x is {}, expected [T, heads, D]", x.shape().str());
  check_shape(op, "positions", positions, {x.dim(0)});
  check_dtype(op, "positions", positions, DType::i32);
  check_dtype(op, "table", table, DType::f32);
  INLAY_ASSERT(table.rank() == 3 && table.dim(2) == 2 && 2 * table.dim(1) <= x.dim(2) && table.contiguous(),
               "rope: table is {}, expected [positions, R/2, 2] with R at most {}", table.shape().str(), x.dim(2));
  exec.count_bytes({x, x});
  if (exec.planning() || x.size() == 0 || table.size() == 0) return;
  if (exec.on_cuda()) return cuda::rope(exec, x, positions, table, rotation, pairs);
  cpu::kernels().rope(exec, x, positions, table, rotation, pairs);
}

}  // namespace inlay::ops
