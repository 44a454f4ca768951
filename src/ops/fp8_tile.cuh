#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/vec.cuh"
#include "core/fp8.h"
#include "ops/fp8.h"

// Forms of a tensor in fp8, from tiles of 128 by 128 numbers that a block of 256 threads holds in its registers: each
// thread eight neighbouring columns of eight neighbouring rows, as they lie in memory. Maxima, scales, codes and their
// transposition cost no further pass.
namespace inlay::ops::cuda {

inline constexpr int fp8_tile = 128, fp8_threads = 256, fp8_edge = 8;
inline constexpr int fp8_across = fp8_tile / fp8_edge;  // threads along either axis

// A form as a kernel writes it; codes are null where it is not wanted.
struct FormOut {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  // for tensor and row: the largest magnitudes, read
  std::int64_t ld = 0, scale_ld = 0;
  Fp8Scaling scaling = Fp8Scaling::vector;
  bool e5m2 = false;
};

inline FormOut form_out(const Fp8Matrix& m) {
  if (m.absent()) return {};
  return {.codes = static_cast<std::uint8_t*>(m.codes.data()),
          .scales = static_cast<float*>(m.scales.data()),
          .ld = m.codes.ld(),
          .scale_ld = m.scales.rank() == 2 ? m.scales.ld() : 0,
          .scaling = m.scaling,
          .e5m2 = m.codes.dtype() == DType::e5m2};
}

struct TileMemory {
  uint2 codes[fp8_tile][fp8_across];  // of the transposed tile; eights of rows, in an order that spares the banks
  float columns[fp8_threads / 32][fp8_tile];
  float warps[fp8_threads / 32];
};

// A NaN wins.
__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Two numbers as codes, the first in the lower byte.
template <bool e5m2>
__device__ __forceinline__ std::uint32_t code_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__device__ __forceinline__ std::uint32_t join(std::uint32_t low, std::uint32_t high) { return low | high << 16; }

__device__ __forceinline__ float inverse_of(float magnitude, bool e5m2) {
  return __fdiv_rn(e5m2 ? fp8::e5m2_largest : fp8::e4m3_largest, fp8::counted_largest(magnitude));
}
__device__ __forceinline__ float scale_of(float magnitude, bool e5m2) {
  return __fdiv_rn(fp8::counted_largest(magnitude), e5m2 ? fp8::e5m2_largest : fp8::e4m3_largest);
}

// Where a tile lies in its tensor [rows, cols].
struct TilePlace {
  std::int64_t row_block, col_block, rows, cols;

  __device__ __forceinline__ int across() const { return static_cast<int>(threadIdx.x) % fp8_across; }
  __device__ __forceinline__ int down() const { return static_cast<int>(threadIdx.x) / fp8_across; }
  __device__ __forceinline__ std::int64_t row() const { return row_block * fp8_tile + down() * fp8_edge; }
  __device__ __forceinline__ std::int64_t col() const { return col_block * fp8_tile + across() * fp8_edge; }
};

template <class T>
using TilePart = backend::cuda::Pack<T, fp8_edge>;  // a thread's share of a row

// The largest magnitudes of a thread's own rows, and of its own columns. Of bf16 two numbers at a time, as they lie.
template <class T>
__device__ __forceinline__ void measure_part(const TilePart<T> (&part)[fp8_edge], float (&of_rows)[fp8_edge],
                                             float (&of_columns)[fp8_edge]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const auto pair = [&](int r, int word) {
      return __habs2(*reinterpret_cast<const __nv_bfloat162*>(&part[r].word[word]));
    };
    __nv_bfloat162 columns[fp8_edge / 2];
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      __nv_bfloat162 row = pair(r, 0);
#pragma unroll
      for (int word = 0; word < fp8_edge / 2; ++word) {
        columns[word] = r == 0 ? pair(r, word) : __hmax2_nan(columns[word], pair(r, word));
        if (word > 0) row = __hmax2_nan(row, pair(r, word));
      }
      of_rows[r] = larger(__low2float(row), __high2float(row));
    }
#pragma unroll
    for (int word = 0; word < fp8_edge / 2; ++word) {
      of_columns[2 * word] = __low2float(columns[word]);
      of_columns[2 * word + 1] = __high2float(columns[word]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < fp8_edge; ++j) of_columns[j] = 0;
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      float x[fp8_edge];
      part[r].get(x);
      of_rows[r] = 0;
#pragma unroll
      for (int j = 0; j < fp8_edge; ++j) {
        of_rows[r] = larger(of_rows[r], fabsf(x[j]));
        of_columns[j] = larger(of_columns[j], fabsf(x[j]));
      }
    }
  }
}

// The same of the rows over all columns of the tile.
template <class T>
__device__ __forceinline__ void measure_tile(const TilePart<T> (&part)[fp8_edge], float (&of_rows)[fp8_edge],
                                             float (&of_columns)[fp8_edge]) {
  measure_part<T>(part, of_rows, of_columns);
#pragma unroll
  for (int r = 0; r < fp8_edge; ++r) {
#pragma unroll
    for (int step = 1; step < fp8_across; step *= 2) {
      of_rows[r] = larger(of_rows[r], __shfl_xor_sync(~0u, of_rows[r], step));
    }
  }
}

// The largest of the whole tile, known to all threads.
__device__ __forceinline__ float largest_of_tile(const float (&of_rows)[fp8_edge], TileMemory& memory) {
  float most = of_rows[0];
#pragma unroll
  for (int r = 1; r < fp8_edge; ++r) most = larger(most, of_rows[r]);
  most = larger(most, __shfl_xor_sync(~0u, most, 16));
  if (threadIdx.x % 32 == 0) memory.warps[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < fp8_threads / 32; ++warp) most = larger(most, memory.warps[warp]);
  return most;
}

// Maxima of the bits of magnitudes are maxima of these, and do not depend on their order.
__device__ __forceinline__ void raise(float* to, float magnitude) {
  atomicMax(reinterpret_cast<unsigned*>(to), __float_as_uint(magnitude));
}
__device__ __forceinline__ void raise_tensor(const FormOut& form, float magnitude) {
  if (form.codes != nullptr && form.scaling == Fp8Scaling::tensor && threadIdx.x == 0) raise(form.scales, magnitude);
}

// Where scales are of rows or of the whole tensor, one pass finds largest magnitudes in their place (zeros first, and
// whether there are any), another reads these and writes codes, and then they become scales.
bool clear_largest(Exec& exec, const Fp8Forms& forms);
void largest_to_scales(Exec& exec, const Fp8Forms& forms);

// A thread's columns over all rows of the tile.
__device__ __forceinline__ void largest_of_columns(float (&of_columns)[fp8_edge], const TilePlace& at,
                                                   TileMemory& memory) {
#pragma unroll
  for (int j = 0; j < fp8_edge; ++j) {
    of_columns[j] = larger(of_columns[j], __shfl_xor_sync(~0u, of_columns[j], 16));
    if (threadIdx.x % 32 < 16) memory.columns[threadIdx.x / 32][at.across() * fp8_edge + j] = of_columns[j];
  }
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < fp8_threads / 32; ++warp) {
#pragma unroll
    for (int j = 0; j < fp8_edge; ++j) {
      of_columns[j] = larger(of_columns[j], memory.columns[warp][at.across() * fp8_edge + j]);
    }
  }
}

template <class T, bool e5m2>
__device__ __forceinline__ void write_rows(const TilePart<T> (&part)[fp8_edge], const float (&of_rows)[fp8_edge],
                                           float square, const FormOut& to, const TilePlace& at) {
#pragma unroll
  for (int r = 0; r < fp8_edge; ++r) {
    const std::int64_t row = at.row() + r;
    if (row >= at.rows) continue;
    float magnitude = square;
    if (to.scaling == Fp8Scaling::vector) {
      magnitude = of_rows[r];
      if (at.across() == 0) to.scales[at.col_block * to.scale_ld + row] = scale_of(magnitude, e5m2);
    } else if (to.scaling == Fp8Scaling::row) {
      magnitude = to.scales[row];
    } else if (to.scaling == Fp8Scaling::tensor) {
      magnitude = to.scales[0];
    }
    const float inverse = inverse_of(magnitude, e5m2);
    float x[fp8_edge];
    part[r].get(x);
    std::uint32_t pairs[fp8_edge / 2];
#pragma unroll
    for (int j = 0; j < fp8_edge; j += 2) pairs[j / 2] = code_pair<e5m2>(x[j] * inverse, x[j + 1] * inverse);
    *reinterpret_cast<uint2*>(to.codes + row * to.ld + at.col()) =
        make_uint2(join(pairs[0], pairs[1]), join(pairs[2], pairs[3]));
  }
  if (to.scaling == Fp8Scaling::square && threadIdx.x == 0) {
    to.scales[at.row_block * to.scale_ld + at.col_block] = scale_of(square, e5m2);
  }
}

// Through shared memory, so that what leaves is in whole rows of the transposed tile.
template <class T, bool e5m2>
__device__ __forceinline__ void write_columns(const TilePart<T> (&part)[fp8_edge], const float (&of_columns)[fp8_edge],
                                              float square, const FormOut& to, const TilePlace& at,
                                              TileMemory& memory) {
  float inverse[fp8_edge];
#pragma unroll
  for (int j = 0; j < fp8_edge; ++j) {
    const std::int64_t col = at.col() + j;
    float magnitude = square;
    if (to.scaling == Fp8Scaling::vector) {
      magnitude = of_columns[j];
      if (at.down() == 0 && col < at.cols) {
        to.scales[at.row_block * to.scale_ld + col] = scale_of(magnitude, e5m2);
      }
    } else if (to.scaling == Fp8Scaling::row) {
      magnitude = col < at.cols ? to.scales[col] : 0.0f;
    } else if (to.scaling == Fp8Scaling::tensor) {
      magnitude = to.scales[0];
    }
    inverse[j] = inverse_of(magnitude, e5m2);
  }
  std::uint32_t pairs[fp8_edge / 2][fp8_edge];  // of two rows each
#pragma unroll
  for (int r = 0; r < fp8_edge; r += 2) {
    float upper[fp8_edge], lower[fp8_edge];
    part[r].get(upper);
    part[r + 1].get(lower);
#pragma unroll
    for (int j = 0; j < fp8_edge; ++j) {
      pairs[r / 2][j] = code_pair<e5m2>(upper[j] * inverse[j], lower[j] * inverse[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < fp8_edge; ++j) {
    memory.codes[at.across() * fp8_edge + j][at.down() ^ at.across()] =
        make_uint2(join(pairs[0][j], pairs[1][j]), join(pairs[2][j], pairs[3][j]));
  }
  __syncthreads();
  const int eight = at.across();
#pragma unroll
  for (int i = 0; i < fp8_edge; ++i) {
    const int column = at.down() + i * fp8_across;
    const std::int64_t col = at.col_block * fp8_tile + column;
    if (col >= at.cols) continue;
    *reinterpret_cast<uint2*>(to.codes + col * to.ld + at.row_block * fp8_tile + eight * fp8_edge) =
        memory.codes[column][eight ^ (column / fp8_edge)];
  }
  if (to.scaling == Fp8Scaling::square && threadIdx.x == 0) {
    to.scales[at.col_block * to.scale_ld + at.row_block] = scale_of(square, e5m2);
  }
}

// All that is wanted of a tile. Numbers beyond the tensor are zeros. Every thread of the block comes here.
template <class T>
__device__ __forceinline__ void write_tile(const TilePart<T> (&part)[fp8_edge], const FormOut& rows,
                                           const FormOut& columns, const TilePlace& at, TileMemory& memory) {
  float of_rows[fp8_edge], of_columns[fp8_edge];
  measure_tile<T>(part, of_rows, of_columns);
  float square = 0;
  const bool wants_square = (rows.codes != nullptr && rows.scaling == Fp8Scaling::square) ||
                            (columns.codes != nullptr && columns.scaling == Fp8Scaling::square);
  if (wants_square) square = largest_of_tile(of_rows, memory);
  if (rows.codes != nullptr) {
    if (rows.e5m2) {
      write_rows<T, true>(part, of_rows, square, rows, at);
    } else {
      write_rows<T, false>(part, of_rows, square, rows, at);
    }
  }
  if (columns.codes == nullptr) return;
  if (columns.scaling == Fp8Scaling::vector) largest_of_columns(of_columns, at, memory);
  if (columns.e5m2) {
    write_columns<T, true>(part, of_columns, square, columns, at, memory);
  } else {
    write_columns<T, false>(part, of_columns, square, columns, at, memory);
  }
}

}  // namespace inlay::ops::cuda
