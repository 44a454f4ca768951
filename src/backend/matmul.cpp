#include "backend/matmul.h"

#include "backend/cpu/matmul.h"
#include "backend/cuda/matmul.h"

namespace inlay::backend {

namespace {

void check(const ConstView& c, const ConstView& a, Transpose transpose_a, const ConstView& b, Transpose transpose_b,
           const MatmulScale& scale) {
  INLAY_ASSERT(c.rank() == 2 && a.rank() == 2 && b.rank() == 2, "matmul: expected matrices, got C {}, A {}, B {}",
               c.shape().str(), a.shape().str(), b.shape().str());
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const std::int64_t m = a.dim(ta ? 1 : 0), k = a.dim(ta ? 0 : 1), n = b.dim(tb ? 0 : 1);
  INLAY_ASSERT(c.dim(0) == m && c.dim(1) == n && b.dim(tb ? 1 : 0) == k, "matmul: C {} is not A {}{} times B {}{}",
               c.shape().str(), a.shape().str(), ta ? "ᵀ" : "", b.shape().str(), tb ? "ᵀ" : "");
  INLAY_ASSERT(a.dtype() == b.dtype(), "matmul: A is {}, B is {}", name_of(a.dtype()), name_of(b.dtype()));
  INLAY_ASSERT(a.dtype() == DType::f32 || a.dtype() == DType::bf16 || a.dtype() == DType::f16,
               "matmul: operands of {}, expected fp32, bf16 or fp16", name_of(a.dtype()));
  INLAY_ASSERT(c.dtype() == a.dtype() || c.dtype() == DType::f32, "matmul: C is {}, expected {} or fp32",
               name_of(c.dtype()), name_of(a.dtype()));
  INLAY_ASSERT(scale.device_alpha == nullptr || scale.beta == 0.0f || scale.beta == 1.0f,
               "matmul: beta is {} beside a factor on the device, expected 0 or 1", scale.beta);
}

}  // namespace

void matmul(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale) {
  check(c, a, transpose_a, b, transpose_b, scale);
  if (c.shape().size() == 0) return;
  const std::int64_t m = c.dim(0), n = c.dim(1), k = a.dim(transpose_a == Transpose::yes ? 0 : 1);
  exec.count_product(a.dtype(), m, n, k);
  const ScratchScope scope(exec.arena());
  const std::int64_t bytes =
      exec.on_cuda() ? cuda::matmul_workspace_bytes : cpu::matmul_workspace_bytes(a.dtype(), m, n, k);
  const View workspace = exec.arena().scratch("matmul workspace", DType::u8, {bytes});
  if (exec.planning()) return;
  if (exec.on_cuda()) return cuda::matmul(exec, workspace, c, a, transpose_a, b, transpose_b, scale);
  cpu::matmul(workspace, c, a, transpose_a, b, transpose_b, scale);
}

}  // namespace inlay::backend
