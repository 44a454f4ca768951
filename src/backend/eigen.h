#pragma once

#include "backend/exec.h"

namespace inlay::backend {

// All eigenvalues and eigenvectors of a symmetric matrix [n, n], fp64 or fp32; rows may be strided. One triangle is
// read; the matrix is overwritten: row i becomes the eigenvector of values[i] ([n], the same dtype), and the values
// ascend. For setting up, not for a step: the host waits for the result. The numbers must be finite.
void symmetric_eigen(Exec& exec, View values, View matrix);

// What the devices answer; there is something to do. Workspaces are bytes (u8) on the device.
namespace cpu {
std::int64_t eigen_workspace_bytes(DType dtype, std::int64_t n);
void symmetric_eigen(View values, View matrix, View workspace);
}  // namespace cpu

namespace cuda {
void symmetric_eigen(Exec& exec, View values, View matrix, View workspace);
}  // namespace cuda

}  // namespace inlay::backend
