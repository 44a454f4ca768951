#pragma once

#include <span>

#include "backend/fp8_matmul.h"

// Products of rows that fall into groups, as backend/grouped_matmul.h has them, in eight bits: the experts of a
// mixture. Sums as fp8_matmul says. The same arguments give the same bits.
namespace inlay::backend {

// Whether they can be made: by the CPU, slowly, and by Hopper GPUs. A plan for a GPU that is not there is one for
// these.
bool grouped_fp8_possible(Device device);

// C[rows of g] = alpha · A[rows of g] · B[g]ᵀ + beta · C, beta 0 or 1. A [S, K]; C [S, N], bf16 or fp32, N a multiple
// of 8 and rows of whole sixteen bytes; B[g] [N, K] in e4m3, evenly spaced in memory. A is scaled by vectors and B by
// squares, or both by rows, or as wholes.
void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale = {}, Fp8Sums sums = Fp8Sums::fp32);

// C[g] = or += alpha · A[:, rows of g] · B[:, rows of g]ᵀ, fp32 [M, N], N and its rows as above. A [M, S] and B [N, S]
// are the whole sorted tensors, as they are for products that sum over rows: blocks of 128 rows have scales of their
// own wherever groups begin. A C[g] that is absent is left out. Sums are in fp32.
void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha = 1.0f);

}  // namespace inlay::backend
