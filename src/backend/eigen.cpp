#include "backend/eigen.h"

namespace inlay::backend {

namespace {

// cuSOLVER's own figure needs a device, and a plan has none. It grows as 4·n² elements (541.3 MB in fp64 at n = 4096,
// 3295.7 MB in fp32 at n = 14336, but 1.7 MB in fp64 at n = 129); this lies a little above, and the call checks that it
// is enough.
std::int64_t cuda_workspace_bytes(DType dtype, std::int64_t n) {
  return n * n * 21 / 5 * static_cast<std::int64_t>(size_of(dtype)) + (std::int64_t{4} << 20);
}

}  // namespace

void symmetric_eigen(Exec& exec, View values, View matrix) {
  INLAY_ASSERT(matrix.rank() == 2 && matrix.dim(0) == matrix.dim(1), "symmetric_eigen: a matrix of {}, expected [n, n]",
               matrix.shape().str());
  const std::int64_t n = matrix.dim(0);
  INLAY_ASSERT(values.shape() == Shape{n}, "symmetric_eigen: values of {}, expected [{}]", values.shape().str(), n);
  const DType dtype = matrix.dtype();
  INLAY_ASSERT(dtype == DType::f64 || dtype == DType::f32, "symmetric_eigen: a matrix of {}, expected fp64 or fp32",
               name_of(dtype));
  INLAY_ASSERT(values.dtype() == dtype, "symmetric_eigen: values are {}, the matrix is {}", name_of(values.dtype()),
               name_of(dtype));
  if (n == 0) return;
  ScratchScope scope(exec.arena());
  const std::int64_t bytes = exec.on_cuda() ? cuda_workspace_bytes(dtype, n) : cpu::eigen_workspace_bytes(dtype, n);
  const View workspace = exec.arena().scratch("eigensolver workspace", DType::u8, {bytes});
  if (exec.planning()) return;
  if (exec.on_cuda()) return cuda::symmetric_eigen(exec, values, matrix, workspace);
  cpu::symmetric_eigen(values, matrix, workspace);
}

}  // namespace inlay::backend
