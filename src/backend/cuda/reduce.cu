#include "backend/cuda/reduce.cuh"

#include "backend/cuda/context_internal.h"

namespace inlay::backend::cuda {

namespace {

constexpr int tile = 32;

// A block sums 32 columns: warp w takes rows w, w + 32, ..., then warp 0 adds up what the warps found, in their order.
__global__ void __launch_bounds__(tile* tile)
    sum_columns(float* out, const float* partials, std::int64_t rows, std::int64_t cols, bool accumulate) {
  __shared__ float shared[tile][tile];
  const std::int64_t col = std::int64_t{blockIdx.x} * tile + threadIdx.x;
  float sum[1] = {};
  if (col < cols) {
    add_up<float>(sum, std::int64_t{threadIdx.y}, rows, std::int64_t{tile},
                  [&](std::int64_t row) { return partials + row * cols + col; });
  }
  shared[threadIdx.y][threadIdx.x] = sum[0];
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < tile; ++i) total += shared[i][threadIdx.x];
  out[col] = accumulate ? out[col] + total : total;
}

}  // namespace

void sum_partial_rows(cudaStream_t stream, float* out, const float* partials, std::int64_t rows, std::int64_t cols,
                      bool accumulate) {
  const auto blocks = static_cast<unsigned>((cols + tile - 1) / tile);
  sum_columns<<<blocks, dim3(tile, tile), 0, stream>>>(out, partials, rows, cols, accumulate);
  check_launch("sum_partial_rows");
}

}  // namespace inlay::backend::cuda
