#include "backend/matmul_f64.h"

#include <limits>

#include "backend/cuda/matmul.h"

namespace inlay::backend {

namespace {

void check(const ConstView& c, const ConstView& a, Transpose transpose_a, const ConstView& b, Transpose transpose_b) {
  INLAY_ASSERT(c.rank() == 2 && a.rank() == 2 && b.rank() == 2, "matmul_f64: expected matrices, got C {}, A {}, B {}",
               c.shape().str(), a.shape().str(), b.shape().str());
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  INLAY_ASSERT(c.dim(0) == a.dim(ta ? 1 : 0) && c.dim(1) == b.dim(tb ? 0 : 1) && a.dim(ta ? 0 : 1) == b.dim(tb ? 1 : 0),
               "matmul_f64: C {} is not A {}{} times B {}{}", c.shape().str(), a.shape().str(), ta ? "ᵀ" : "",
               b.shape().str(), tb ? "ᵀ" : "");
  for (const ConstView& view : {c, a, b}) {
    INLAY_ASSERT(view.dtype() == DType::f64, "matmul_f64: an operand is {}", name_of(view.dtype()));
    // The libraries count in 32 bits.
    for (const std::int64_t extent : {view.dim(0), view.dim(1), view.ld()}) {
      INLAY_ASSERT(extent <= std::numeric_limits<int>::max(), "matmul_f64: {} is too large", view.shape().str());
    }
  }
}

}  // namespace

void matmul_f64(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
                double alpha, double beta) {
  check(c, a, transpose_a, b, transpose_b);
  if (c.shape().size() == 0) return;
  exec.count_product(DType::f64, c.dim(0), c.dim(1), a.dim(transpose_a == Transpose::yes ? 0 : 1));
  if (exec.on_cuda()) {
    ScratchScope scope(exec.arena());
    const View workspace = exec.arena().scratch("matmul workspace", DType::u8, {cuda::matmul_workspace_bytes});
    if (exec.planning()) return;
    return cuda::matmul_f64(exec, workspace, c, a, transpose_a, b, transpose_b, alpha, beta);
  }
  if (exec.planning()) return;
  cpu::matmul_f64(c, a, transpose_a, b, transpose_b, alpha, beta);
}

}  // namespace inlay::backend
