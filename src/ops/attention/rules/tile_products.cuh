#pragma once

#include "backend/cuda/warpgroup.cuh"

// Products of tiles in shared memory on the tensor cores, with the sums in registers: Hopper's products of a warpgroup
// where the code is compiled for sm_90a, those of a warp elsewhere. Both leave the sums in the same places, so the
// kernels above are written once. Compiled at run time too: no headers but ours.
//
// A tile of `rows` rows lies in panels of 64 columns, a row of a panel in a line of 128 bytes, whose eight pieces are
// swapped by the row's number (the swizzle that the tensor cores know, and free of bank conflicts for ldmatrix).
// Four warps work together on 64 rows of A. sums[j][i] of a thread belongs to row 16 warp + lane / 4 + 8 (i / 2) and
// column 8 j + 2 (lane % 4) + i % 2.
namespace inlay::ops::flash {

constexpr int line_bytes = 128;

using backend::cuda::hopper::shared_address;

// Eight elements of a row: `chunk` counts them within the row.
template <int rows>
__device__ __forceinline__ unsigned address_of(unsigned tile, int row, int chunk) {
  return tile + (chunk / 8) * (rows * line_bytes) + row * line_bytes + ((chunk % 8) ^ (row % 8)) * 16;
}

__device__ __forceinline__ unsigned packed(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Sums become the left operand of a further product.
template <int columns>
__device__ __forceinline__ void pack(unsigned (&a)[columns / 16][4], const float (&x)[columns / 8][4]) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k) {
    a[k][0] = packed(x[2 * k][0], x[2 * k][1]);
    a[k][1] = packed(x[2 * k][2], x[2 * k][3]);
    a[k][2] = packed(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[k][3] = packed(x[2 * k + 1][2], x[2 * k + 1][3]);
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(INLAY_WITHOUT_WGMMA)

using backend::cuda::hopper::await_products;
using backend::cuda::hopper::begin_products;
using backend::cuda::hopper::end_products;
using backend::cuda::hopper::pin;
using backend::cuda::hopper::wgmma;
using backend::cuda::hopper::wgmma_first;

__device__ __forceinline__ unsigned long long describe(unsigned address, int leading) {
  return backend::cuda::hopper::describe(address, leading, 8 * line_bytes);
}

// What copies wrote to shared memory is there for the tensor cores, after the barrier that follows.
__device__ __forceinline__ void publish_tiles() { backend::cuda::hopper::publish_stores(); }

// sums [64, columns] = A [64, depth] · B [columns, depth]^T; a and b: tiles of a_rows and b_rows rows, a from the
// warpgroup's first row on.
template <int columns, int depth, int a_rows, int b_rows>
__device__ __forceinline__ void multiply_rows(float (&sums)[columns / 8][4], unsigned a, unsigned b) {
  begin_products();
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    const int inside = k % 4 * 32;
    const unsigned long long left = describe(a + k / 4 * (a_rows * line_bytes) + inside, 0);
    const unsigned long long right = describe(b + k / 4 * (b_rows * line_bytes) + inside, 0);
    if (k == 0) {
      wgmma_first<0, 0>(sums, left, right);
    } else {
      wgmma<0, 0>(sums, left, right);
    }
  }
  end_products();
}

// sums [64, columns] += A [64, depth] · B [depth, columns]; A from registers, b: a tile of `depth` rows.
template <int columns, int depth>
__device__ __forceinline__ void multiply_columns(float (&sums)[columns / 8][4], const unsigned (&a)[depth / 16][4],
                                                 unsigned b) {
  begin_products();
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) wgmma<1>(sums, a[k], describe(b + k * 16 * line_bytes, depth * line_bytes));
  end_products();
}

#else

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Nothing runs beside the threads here.
template <int pending>
__device__ __forceinline__ void await_products() {}
template <int count>
__device__ __forceinline__ void pin(float (&)[count][4]) {}
__device__ __forceinline__ void publish_tiles() {}

template <int columns, int depth, int a_rows, int b_rows>
__device__ __forceinline__ void multiply_rows(float (&sums)[columns / 8][4], unsigned a, unsigned b) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    unsigned left[4];
    load_matrices(left, address_of<a_rows>(a, row, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < columns / 16; ++j) {
      unsigned right[4];
      load_matrices(right, address_of<b_rows>(b, 16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      mma(sums[2 * j], left, right[0], right[1]);
      mma(sums[2 * j + 1], left, right[2], right[3]);
    }
  }
}

template <int columns, int depth>
__device__ __forceinline__ void multiply_columns(float (&sums)[columns / 8][4], const unsigned (&a)[depth / 16][4],
                                                 unsigned b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
#pragma unroll
    for (int j = 0; j < columns / 16; ++j) {
      unsigned right[4];
      load_matrices_transposed(right, address_of<depth>(b, 16 * k + lane % 16, 2 * j + lane / 16));
      mma(sums[2 * j], a[k], right[0], right[1]);
      mma(sums[2 * j + 1], a[k], right[2], right[3]);
    }
  }
}

#endif

}  // namespace inlay::ops::flash
