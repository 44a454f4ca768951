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
};

// in: dtype of A and B (f32, bf16, f16); out: dtype of C (the same, or f32). fp32 accumulation; the order of the sums
// does not depend on the number of threads or on M, N blocking of other calls: the same arguments, the same bits.
void gemm(const GemmArgs& args, DType in, DType out);

// The most that the packing buffers of gemm() hold between calls, in all threads: they live outside any arena.
std::size_t gemm_buffer_bytes();

// The CPU has tiles and the kernel grants them to this process (asked on the first call). INLAY_CPU_ISA=vector in the
// environment, read once, says no, and bf16 then runs on vector code.
bool amx_usable();

}  // namespace inlay::backend::cpu
