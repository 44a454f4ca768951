#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/vec.cuh"

// Sums with a fixed order, without atomics: the same inputs give the same bits.
namespace inlay::backend::cuda {

// Over groups of `width` neighbouring lanes (a power of two up to 32); every lane gets the sum. All lanes of the warp
// take part.
template <class Number>
__device__ __forceinline__ Number warp_sum(Number value, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Over all threads of a block whose size is a multiple of 32; every thread gets the sum. `partials` is shared memory
// for one number a warp (32), free to use again after the next barrier.
template <class Number>
__device__ __forceinline__ Number block_sum(Number value, Number* partials) {
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int warps = static_cast<int>(blockDim.x * blockDim.y) / 32;
  value = warp_sum(value);
  if (thread % 32 == 0) partials[thread / 32] = value;
  __syncthreads();
  Number total = 0;
  for (int warp = 0; warp < warps; ++warp) total += partials[warp];
  return total;
}

// sum += the vectors at address(i) for i = begin, begin + step, ... below end, in that order. Four loads are under way
// before the first is used; the compiler would not dare by itself, for it does not know that all four exist.
template <class T, int V, class Index, class Address>
__device__ __forceinline__ void add_up(float (&sum)[V], Index begin, Index end, Index step, const Address& address) {
  constexpr int batch = 4;
  const auto add = [&](const Pack<T, V>& pack) {
    float x[V];
    pack.get(x);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += x[i];
  };
  Index i = begin;
  for (; i + (batch - 1) * step < end; i += batch * step) {
    Pack<T, V> packs[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) packs[k].load(address(i + k * step));
#pragma unroll
    for (int k = 0; k < batch; ++k) add(packs[k]);
  }
  for (; i < end; i += step) {
    Pack<T, V> pack;
    pack.load(address(i));
    add(pack);
  }
}

// out[col] = or += Σ over rows of partials [rows, cols], contiguous. The second stage of sums down the columns.
void sum_partial_rows(cudaStream_t stream, float* out, const float* partials, std::int64_t rows, std::int64_t cols,
                      bool accumulate);

}  // namespace inlay::backend::cuda
