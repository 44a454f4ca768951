#pragma once

#include "ops/check.h"

// Sums and factors along the columns and rows of matrices: what the magnitudes of DoRA need.
namespace inlay::ops {

// out[j] = or += Σ_t a[t, j] · b[t, j] in a fixed order; out fp32 [N], a and b [T, N] fp32 or bf16 each.
void column_dot(Exec& exec, View out, Grad mode, ConstView a, ConstView b);
// y[t, j] = x[t, j] · factors[j]; x and y in one dtype, fp32 or bf16, and y may be x; factors fp32 [N].
void scale_columns(Exec& exec, View y, ConstView x, ConstView factors);
// out[i] = the Euclidean norm of row i of x [R, C], fp32 or bf16; out fp32 [R].
void row_norms(Exec& exec, View out, ConstView x);
// out[i] = a[i] / b[i], fp32 [n], 0 where b[i] is 0; out may be either.
void quotients(Exec& exec, View out, ConstView a, ConstView b);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning, no
// skipping). scratch: fp32 [min(T, 512), N] for partial column sums.
namespace cpu {
void column_dot(Exec& exec, View out, Grad mode, ConstView a, ConstView b, View scratch);
void scale_columns(Exec& exec, View y, ConstView x, ConstView factors);
void square_roots(Exec& exec, View x);
void quotients(Exec& exec, View out, ConstView a, ConstView b);
}  // namespace cpu

namespace cuda {
void column_dot(Exec& exec, View out, Grad mode, ConstView a, ConstView b, View scratch);
void scale_columns(Exec& exec, View y, ConstView x, ConstView factors);
void square_roots(Exec& exec, View x);
void quotients(Exec& exec, View out, ConstView a, ConstView b);
}  // namespace cuda

}  // namespace inlay::ops
