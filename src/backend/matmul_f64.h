#pragma once

#include "backend/matmul.h"

namespace inlay::backend {

// C = alpha · op(A) · op(B) + beta · C in fp64, row-major; shapes as in matmul(). For decompositions: the layers of a
// model multiply in matmul(). With beta = 0 what was in C does not matter.
void matmul_f64(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
                double alpha = 1.0, double beta = 0.0);

// What the devices answer; C is not empty. workspace: bytes (u8) on the device.
namespace cpu {
void matmul_f64(View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b, double alpha,
                double beta);
}  // namespace cpu

namespace cuda {
void matmul_f64(Exec& exec, View workspace, View c, ConstView a, Transpose transpose_a, ConstView b,
                Transpose transpose_b, double alpha, double beta);
}  // namespace cuda

}  // namespace inlay::backend
