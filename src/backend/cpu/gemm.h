#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

// Matrix products on the host, over raw pointers: C[M,N] = alpha · op(A) · op(B) + beta · C, row-major, leading
// dimensions in elements. op(A)[m,k] is A[m·lda + k], or A[k·lda + m] when transposed; op(B)[k,n] likewise.
namespace inlay::backend::cpu {

struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  bool transpose_a = false;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  bool transpose_b = false;
  void* c = nullptr;
  std::int64_t ldc = 0;
  float alpha = 1, beta = 0;
  void* workspace = nullptr;  // scratch of gemm_workspace_bytes(), aligned to 64; nobody else's during the call
};

// in: dtype of A and B (f32, bf16, f16); out: dtype of C (the same, or f32). fp32 accumulation; the order of the sums
// does not depend on the number of threads or on M, N blocking of other calls: the same arguments, the same bits.
void gemm(const GemmArgs& args, DType in, DType out);

// Scratch for the operands as they are packed and for sums on their way, of all threads: what the extents in args ask
// for. It never falls as one of them grows, so what suffices for a full batch suffices for every smaller one. oneDNN,
// which multiplies large fp32 matrices, brings its own and cannot be given any.
std::size_t gemm_workspace_bytes(const GemmArgs& args, DType in);

// bf16 is multiplied in tiles: chosen_isa() is amx. Elsewhere it runs on vector code.
bool amx_usable();

}  // namespace inlay::backend::cpu
