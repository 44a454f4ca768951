#pragma once

#include "backend/matmul.h"

namespace inlay::backend::cuda {

// Products of a few rows with a matrix, C [m, n] = alpha · A [m, k] · Bᵀ + beta · C: all that counts there is how fast
// B [n, k] streams by. False, and nothing done, where the product is not of that kind.
bool thin_matmul(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
                 const MatmulScale& scale);

}  // namespace inlay::backend::cuda
