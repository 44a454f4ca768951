#include "backend/cuda/grouped_matmul.h"

#include "backend/cuda/grouped_tiles.cuh"
#include "core/environment.h"

// Three routes: Hopper's warpgroup products (grouped_hopper.cu), tensor cores of any GPU (grouped_tensor.cu), and the
// kernel here for whatever is left: fp32, and bf16 matrices that are not aligned. INLAY_GROUPED_MATMUL=plain or
// =tensor takes that one, =hopper makes it an error that the first cannot.
namespace inlay::backend::cuda {

namespace {

enum class Route { any, plain, tensor, hopper };

Route wanted_route() {
  const auto value = environment("INLAY_GROUPED_MATMUL");
  if (!value) return Route::any;
  return *value == "plain" ? Route::plain : *value == "tensor" ? Route::tensor : Route::hopper;
}

constexpr int tile = 64, depth = 16, threads = 256, per = 4;  // a thread has 4 x 4 of a tile of 64 x 64

// A matrix of any orientation: element (row, column) lies at row · row_stride + column · column_stride.
template <class T>
struct Operand {
  const T* data;
  std::int64_t row_stride, column_stride;

  __device__ __forceinline__ float at(int row, int column) const {
    float value[1];
    load(value, data + row * row_stride + column * column_stride);
    return value[0];
  }
};

// sums += A[rows from row0, k from begin to end] · B[the same k, columns from column0] for this thread's part of a
// tile. Rows from row_end and columns from column_end on count as zero.
template <class T>
__device__ __forceinline__ void multiply_tile(float (&sums)[per][per], const Operand<T>& a, const Operand<T>& b,
                                              int row0, int row_end, int column0, int column_end, int begin, int end) {
  __shared__ float left[depth][tile + 4], right[depth][tile + 4];
  const int thread = static_cast<int>(threadIdx.x), x = thread % 16 * per, y = thread / 16 * per;
  // Neighbouring threads read neighbouring elements, whichever way the operand lies.
  const bool a_by_k = a.column_stride == 1, b_by_k = b.row_stride == 1;
  for (int k0 = begin; k0 < end; k0 += depth) {
    for (int i = thread; i < tile * depth; i += threads) {
      const int m = a_by_k ? i / depth : i % tile, k = a_by_k ? i % depth : i / tile;
      left[k][m] = row0 + m < row_end && k0 + k < end ? a.at(row0 + m, k0 + k) : 0.0f;
    }
    for (int i = thread; i < tile * depth; i += threads) {
      const int n = b_by_k ? i / depth : i % tile, k = b_by_k ? i % depth : i / tile;
      right[k][n] = column0 + n < column_end && k0 + k < end ? b.at(k0 + k, column0 + n) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < per; ++i) {
#pragma unroll
        for (int j = 0; j < per; ++j) sums[i][j] = fmaf(left[k][y + i], right[k][x + j], sums[i][j]);
      }
    }
    __syncthreads();
  }
}

struct Extent {
  int groups, m, n, k;
};

template <class T>
__global__ void __launch_bounds__(threads)
    by_groups(T* c, std::int64_t ldc, const T* a, std::int64_t lda, const __grid_constant__ GroupPointers<const T> b,
              std::int64_t b_k_stride, std::int64_t b_n_stride, const std::int32_t* offsets, Extent extent,
              bool accumulate, float alpha) {
  const GroupTile place = find_group_tile(offsets, extent.groups, static_cast<int>(blockIdx.x), tile);
  if (place.group < 0) return;
  const int column0 = static_cast<int>(blockIdx.y) * tile;
  float sums[per][per] = {};
  multiply_tile<T>(sums, {a, lda, 1}, {b.data[place.group], b_k_stride, b_n_stride}, place.first, place.end, column0,
                   extent.n, 0, extent.k);
  const int x = static_cast<int>(threadIdx.x) % 16 * per, y = static_cast<int>(threadIdx.x) / 16 * per;
#pragma unroll
  for (int i = 0; i < per; ++i) {
#pragma unroll
    for (int j = 0; j < per; ++j) {
      if (place.first + y + i >= place.end || column0 + x + j >= extent.n) continue;
      T* at = c + (place.first + y + i) * ldc + column0 + x + j;
      float value[1] = {};
      if (accumulate) load(value, at);
      value[0] += alpha * sums[i][j];
      store(at, value);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(threads)
    over_rows(const __grid_constant__ GroupPointers<float> c, std::int64_t ldc, const T* a, std::int64_t lda,
              const T* b, std::int64_t ldb, const std::int32_t* offsets, Extent extent, bool accumulate, float alpha) {
  float* const to = c.data[blockIdx.z];
  if (to == nullptr) return;
  const int row0 = static_cast<int>(blockIdx.y) * tile, column0 = static_cast<int>(blockIdx.x) * tile;
  float sums[per][per] = {};
  multiply_tile<T>(sums, {a, 1, lda}, {b, ldb, 1}, row0, extent.m, column0, extent.n, offsets[blockIdx.z],
                   offsets[blockIdx.z + 1]);
  const int x = static_cast<int>(threadIdx.x) % 16 * per, y = static_cast<int>(threadIdx.x) / 16 * per;
#pragma unroll
  for (int i = 0; i < per; ++i) {
#pragma unroll
    for (int j = 0; j < per; ++j) {
      if (row0 + y + i >= extent.m || column0 + x + j >= extent.n) continue;
      float& target = to[(row0 + y + i) * ldc + column0 + x + j];
      target = (accumulate ? target : 0.0f) + alpha * sums[i][j];
    }
  }
}

unsigned tiles_of(std::int64_t extent) { return static_cast<unsigned>((extent + tile - 1) / tile); }

void plain(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b, ConstView offsets,
           MatmulScale scale) {
  const bool tb = transpose_b == Transpose::yes;
  const std::int64_t ldb = common_ld(b);
  const Extent extent{static_cast<int>(b.size()), 0, static_cast<int>(c.dim(1)), static_cast<int>(a.dim(1))};
  const std::int64_t row_tiles = c.dim(0) / tile + extent.groups;
  const dim3 blocks(static_cast<unsigned>(row_tiles), tiles_of(c.dim(1)));
  with_activation_type(c.dtype(), [&](auto type) {
    using T = decltype(type);
    by_groups<T><<<blocks, threads, 0, stream_of(exec)>>>(
        pointer<T>(c), c.ld(), pointer<T>(a), a.ld(), group_pointers<const T>(b), tb ? 1 : ldb, tb ? ldb : 1,
        pointer<std::int32_t>(offsets), extent, scale.beta != 0, scale.alpha);
  });
  check_launch("grouped_matmul");
}

void plain_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b, ConstView offsets,
                     float alpha) {
  const Extent extent{static_cast<int>(c.size()), static_cast<int>(a.dim(1)), static_cast<int>(b.dim(1)), 0};
  const dim3 blocks(tiles_of(b.dim(1)), tiles_of(a.dim(1)), static_cast<unsigned>(c.size()));
  with_activation_type(a.dtype(), [&](auto type) {
    using T = decltype(type);
    over_rows<T><<<blocks, threads, 0, stream_of(exec)>>>(group_pointers<float>(c), common_ld(c), pointer<T>(a), a.ld(),
                                                          pointer<T>(b), b.ld(), pointer<std::int32_t>(offsets), extent,
                                                          mode == Grad::accumulate, alpha);
  });
  check_launch("grouped_matmul_over_rows");
}

[[noreturn]] void refuse(const ConstView& a) {
  user_error("INLAY_GROUPED_MATMUL=hopper: this GPU or these matrices ({} {}) do not allow it", name_of(a.dtype()),
             a.shape().str());
}

}  // namespace

void grouped_matmul(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale) {
  const Route route = wanted_route();
  if (route == Route::any || route == Route::hopper) {
    if (grouped_hopper(exec, c, a, b, transpose_b, offsets, scale)) return;
    if (route == Route::hopper && a.dtype() == DType::bf16) refuse(a);
  }
  if (route != Route::plain && grouped_tensor(exec, c, a, b, transpose_b, offsets, scale)) return;
  plain(exec, c, a, b, transpose_b, offsets, scale);
}

void grouped_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha) {
  const Route route = wanted_route();
  if (route == Route::any || route == Route::hopper) {
    if (grouped_hopper_over_rows(exec, c, mode, a, b, offsets, alpha)) return;
    if (route == Route::hopper && a.dtype() == DType::bf16) refuse(a);
  }
  if (route != Route::plain && grouped_tensor_over_rows(exec, c, mode, a, b, offsets, alpha)) return;
  plain_over_rows(exec, c, mode, a, b, offsets, alpha);
}

}  // namespace inlay::backend::cuda
