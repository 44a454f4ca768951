#include "backend/cpu/matmul.h"

#include "backend/cpu/gemm.h"

namespace inlay::backend::cpu {

std::int64_t matmul_workspace_bytes(DType operands, std::int64_t m, std::int64_t n, std::int64_t k) {
  return static_cast<std::int64_t>(gemm_workspace_bytes({.m = m, .n = n, .k = k}, operands));
}

void matmul(View workspace, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale) {
  const GemmArgs args{
      .m = c.dim(0),
      .n = c.dim(1),
      .k = a.dim(transpose_a == Transpose::yes ? 0 : 1),
      .a = a.data(),
      .lda = a.ld(),
      .transpose_a = transpose_a == Transpose::yes,
      .b = b.data(),
      .ldb = b.ld(),
      .transpose_b = transpose_b == Transpose::yes,
      .c = c.data(),
      .ldc = c.ld(),
      .alpha = scale.device_alpha == nullptr ? scale.alpha : scale.alpha * *scale.device_alpha,
      .beta = scale.beta,
      .workspace = workspace.data(),
  };
  gemm(args, a.dtype(), c.dtype());
}

}  // namespace inlay::backend::cpu
