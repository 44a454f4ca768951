#pragma once

#include <span>

#include "backend/matmul.h"

// Products of rows that fall into groups, each with a matrix of its own: the experts of a mixture. Group g owns the
// rows offsets[g] .. offsets[g + 1] - 1 of a matrix of S rows; offsets are int32 [G + 1] on the device, ascending from
// 0 to S, and on a GPU nobody waits for them. A group may be empty. Operands share a dtype (fp32 or bf16); fp32
// accumulation, and fp32 products are true fp32. The same arguments give the same bits.
namespace inlay::backend {

inline constexpr std::int64_t most_groups = 256;

// C[rows of g] = alpha · A[rows of g] · op(B[g]) + beta · C, beta 0 or 1. A [S, K], C [S, N] in A's dtype; B[g] is [K,
// N], or [N, K] where transposed. The first offset need not be 0: rows of no group are left alone.
void grouped_matmul(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale = {});

// C[g] = or += alpha · A[rows of g]ᵀ · B[rows of g], fp32 [M, N]; A [S, M], B [S, N]. A C[g] that is absent is left
// out.
void grouped_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha = 1.0f);

}  // namespace inlay::backend
