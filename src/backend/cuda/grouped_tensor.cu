#include <mma.h>

#include "backend/cuda/grouped_matmul.h"
#include "backend/cuda/grouped_tiles.cuh"

// bf16 products on the tensor cores of any GPU from Ampere on: tiles of 128 x 128, 32 deep, through shared memory in
// the orientation in which they lie in memory; the next tile is on its way in registers while one is multiplied.
namespace inlay::backend::cuda {

namespace {

namespace wmma = nvcuda::wmma;
using bf16_t = __nv_bfloat16;

constexpr int tile = 128, depth = 32, threads = 256, vector = 8, padding = 8;
constexpr int warp_rows = 64, warp_columns = 32;  // 2 x 4 warps
constexpr int vectors_a_thread = tile * depth / vector / threads;

// `lines` lines of contiguous elements: rows of a matrix, of which [first_line, line_end) and [first, end) exist.
struct Source {
  const bf16_t* data;
  std::int64_t ld;
  int first_line, line_end, first, end;
};

// A tile on its way: `width` elements across. Ends are multiples of a vector across, of anything down.
template <int width>
struct Stage {
  static constexpr int vectors_a_line = width / vector, ld = width + padding;
  Pack<bf16_t, vector> packs[vectors_a_thread];

  __device__ __forceinline__ void fetch(const Source& from) {
#pragma unroll
    for (int i = 0; i < vectors_a_thread; ++i) {
      const int index = i * threads + static_cast<int>(threadIdx.x);
      const int line = from.first_line + index / vectors_a_line, at = from.first + index % vectors_a_line * vector;
      if (line < from.line_end && at < from.end) {
        packs[i].load(from.data + line * from.ld + at);
      } else {
        packs[i].clear();
      }
    }
  }
  __device__ __forceinline__ void put(bf16_t* shared) const {
#pragma unroll
    for (int i = 0; i < vectors_a_thread; ++i) {
      const int index = i * threads + static_cast<int>(threadIdx.x);
      uint4* to = reinterpret_cast<uint4*>(shared + index / vectors_a_line * ld + index % vectors_a_line * vector);
      *to = make_uint4(packs[i].word[0], packs[i].word[1], packs[i].word[2], packs[i].word[3]);
    }
  }
};

// How an operand lies: contiguous along k, or along its rows (A) or columns (B).
enum class Along { k, other };

template <Along along>
inline constexpr int stage_width = along == Along::k ? depth : tile;
template <Along along>
inline constexpr int stage_elements = (along == Along::k ? tile : depth) * (stage_width<along> + padding);

// Where the part of an operand from k0 on lies; `other` is the tile's first row (column) and its end.
template <Along along>
__device__ __forceinline__ Source source(const bf16_t* data, std::int64_t ld, int other, int other_end, int k0,
                                         int k_end) {
  if constexpr (along == Along::k) {
    return {data, ld, other, other_end, k0, k_end};
  } else {
    return {data, ld, k0, k_end, other, other_end};
  }
}

struct Operand {
  const bf16_t* data;
  std::int64_t ld;
  int first, end;  // rows of A, columns of B
};

// Calls write(row, column, eight sums) for every eighth column of the tile's rows, counted within the tile.
template <Along a_along, Along b_along, class Write>
__device__ __forceinline__ void multiply_tile(const Operand& a, const Operand& b, int begin, int end,
                                              const Write& write) {
  using ALayout = std::conditional_t<a_along == Along::k, wmma::row_major, wmma::col_major>;
  using BLayout = std::conditional_t<b_along == Along::k, wmma::col_major, wmma::row_major>;
  constexpr int a_ld = stage_width<a_along> + padding, b_ld = stage_width<b_along> + padding;
  constexpr int row_fragments = warp_rows / 16, column_fragments = warp_columns / 16;
  __shared__ __align__(32) bf16_t left[stage_elements<a_along>];
  __shared__ __align__(32) bf16_t right[stage_elements<b_along>];
  __shared__ __align__(32) float patches[threads / 32][16 * 16];

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp / 4 * warp_rows, column = warp % 4 * warp_columns;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[row_fragments][column_fragments];
#pragma unroll
  for (int i = 0; i < row_fragments; ++i) {
#pragma unroll
    for (int j = 0; j < column_fragments; ++j) wmma::fill_fragment(sums[i][j], 0.0f);
  }
  Stage<stage_width<a_along>> a_stage;
  Stage<stage_width<b_along>> b_stage;
  const auto fetch = [&](int k0) {
    a_stage.fetch(source<a_along>(a.data, a.ld, a.first, a.end, k0, end));
    b_stage.fetch(source<b_along>(b.data, b.ld, b.first, b.end, k0, end));
  };
  if (begin < end) fetch(begin);
  for (int k0 = begin; k0 < end; k0 += depth) {
    a_stage.put(left);
    b_stage.put(right);
    __syncthreads();
    if (k0 + depth < end) fetch(k0 + depth);
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16_t, ALayout> x[row_fragments];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16_t, BLayout> y[column_fragments];
#pragma unroll
      for (int i = 0; i < row_fragments; ++i) {
        const int m = row + 16 * i;
        wmma::load_matrix_sync(x[i], left + (a_along == Along::k ? m * a_ld + k : k * a_ld + m), a_ld);
      }
#pragma unroll
      for (int j = 0; j < column_fragments; ++j) {
        const int n = column + 16 * j;
        wmma::load_matrix_sync(y[j], right + (b_along == Along::k ? n * b_ld + k : k * b_ld + n), b_ld);
      }
#pragma unroll
      for (int i = 0; i < row_fragments; ++i) {
#pragma unroll
        for (int j = 0; j < column_fragments; ++j) wmma::mma_sync(sums[i][j], x[i], y[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < row_fragments; ++i) {
#pragma unroll
    for (int j = 0; j < column_fragments; ++j) {
      wmma::store_matrix_sync(patches[warp], sums[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      float values[vector];
      const float* from = patches[warp] + lane / 2 * 16 + lane % 2 * vector;
#pragma unroll
      for (int e = 0; e < vector; ++e) values[e] = from[e];
      write(row + 16 * i + lane / 2, column + 16 * j + lane % 2 * vector, values);
      __syncwarp();
    }
  }
}

struct Extent {
  int groups, m, n, k;
};

template <Along b_along>
__global__ void __launch_bounds__(threads)
    by_groups(bf16_t* c, std::int64_t ldc, const bf16_t* a, std::int64_t lda,
              const __grid_constant__ GroupPointers<const bf16_t> b, std::int64_t ldb, const std::int32_t* offsets,
              Extent extent, bool accumulate, float alpha) {
  const GroupTile place = find_group_tile(offsets, extent.groups, static_cast<int>(blockIdx.x), tile);
  if (place.group < 0) return;
  const int column0 = static_cast<int>(blockIdx.y) * tile;
  multiply_tile<Along::k, b_along>({a, lda, place.first, place.end}, {b.data[place.group], ldb, column0, extent.n}, 0,
                                   extent.k, [&](int row, int column, float(&values)[vector]) {
                                     if (place.first + row >= place.end || column0 + column >= extent.n) return;
                                     bf16_t* at = c + (place.first + row) * ldc + column0 + column;
                                     float before[vector] = {};
                                     if (accumulate) load(before, at);
#pragma unroll
                                     for (int e = 0; e < vector; ++e) values[e] = alpha * values[e] + before[e];
                                     store(at, values);
                                   });
}

__global__ void __launch_bounds__(threads)
    over_rows(const __grid_constant__ GroupPointers<float> c, std::int64_t ldc, const bf16_t* a, std::int64_t lda,
              const bf16_t* b, std::int64_t ldb, const std::int32_t* offsets, Extent extent, bool accumulate,
              float alpha) {
  float* const to = c.data[blockIdx.z];
  if (to == nullptr) return;
  const int row0 = static_cast<int>(blockIdx.y) * tile, column0 = static_cast<int>(blockIdx.x) * tile;
  multiply_tile<Along::other, Along::other>({a, lda, row0, extent.m}, {b, ldb, column0, extent.n}, offsets[blockIdx.z],
                                            offsets[blockIdx.z + 1], [&](int row, int column, float(&values)[vector]) {
                                              if (row0 + row >= extent.m || column0 + column >= extent.n) return;
                                              float* at = to + (row0 + row) * ldc + column0 + column;
                                              float before[vector] = {};
                                              if (accumulate) load(before, at);
#pragma unroll
                                              for (int e = 0; e < vector; ++e)
                                                values[e] = alpha * values[e] + before[e];
                                              store(at, values);
                                            });
}

unsigned tiles_of(std::int64_t extent) { return static_cast<unsigned>((extent + tile - 1) / tile); }

bool has_tensor_cores(Exec& exec) { return gpu(exec).properties().major >= 8; }

// All that are there can be moved in vectors of eight.
template <class AnyView>
bool all_fit(std::span<const AnyView> views) {
  for (const AnyView& view : views) {
    if (!view.absent() && !vectors_fit(vector, view)) return false;
  }
  return true;
}

}  // namespace

bool grouped_tensor(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale) {
  if (a.dtype() != DType::bf16 || !has_tensor_cores(exec) || !vectors_fit(vector, c, a) || !all_fit(b)) return false;
  const Extent extent{static_cast<int>(b.size()), 0, static_cast<int>(c.dim(1)), static_cast<int>(a.dim(1))};
  const std::int64_t row_tiles = c.dim(0) / tile + extent.groups;
  const dim3 blocks(static_cast<unsigned>(row_tiles), tiles_of(c.dim(1)));
  const auto kernel = transpose_b == Transpose::yes ? by_groups<Along::k> : by_groups<Along::other>;
  kernel<<<blocks, threads, 0, stream_of(exec)>>>(pointer<bf16_t>(c), c.ld(), pointer<bf16_t>(a), a.ld(),
                                                  group_pointers<const bf16_t>(b), common_ld(b),
                                                  pointer<std::int32_t>(offsets), extent, scale.beta != 0, scale.alpha);
  check_launch("grouped_matmul");
  return true;
}

bool grouped_tensor_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha) {
  if (a.dtype() != DType::bf16 || !has_tensor_cores(exec) || !vectors_fit(vector, a, b) || !all_fit(c)) return false;
  const Extent extent{static_cast<int>(c.size()), static_cast<int>(a.dim(1)), static_cast<int>(b.dim(1)), 0};
  const dim3 blocks(tiles_of(b.dim(1)), tiles_of(a.dim(1)), static_cast<unsigned>(c.size()));
  over_rows<<<blocks, threads, 0, stream_of(exec)>>>(group_pointers<float>(c), common_ld(c), pointer<bf16_t>(a), a.ld(),
                                                     pointer<bf16_t>(b), b.ld(), pointer<std::int32_t>(offsets), extent,
                                                     mode == Grad::accumulate, alpha);
  check_launch("grouped_matmul_over_rows");
  return true;
}

}  // namespace inlay::backend::cuda
