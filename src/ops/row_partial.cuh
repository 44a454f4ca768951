#pragma once

#include <cooperative_groups.h>

#include <cstdint>

// What threads, blocks and clusters know of a row of logits, and how they put it together in a fixed order.
namespace inlay::ops::cuda {

inline constexpr float log2_e = 1.44269504f;
inline constexpr int most_blocks_a_row = 8;  // the portable size of a cluster

// Clusters; on GPUs older than Hopper a row has one block.
__device__ inline int cluster_size() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#else
  return 1;
#endif
}
__device__ inline int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
  return 0;
#endif
}
__device__ inline void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#else
  __syncthreads();
#endif
}
// The two halves of a sync: what comes between them does not wait.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
template <class T>
__device__ inline T* in_block(T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
#else
  return shared;
#endif
}

// What part of a row knows: its largest logit, the sum of exponentials against it, its share of `spread`, and the
// largest logit before softcap with its first column.
struct Partial {
  float max, sum, spread, top;
  int column;
};

__device__ inline Partial empty_partial() { return {-INFINITY, 0.0f, 0.0f, -INFINITY, 0x7fffffff}; }

__device__ inline float scaled(float sum, float max, float new_max) {
  return max == new_max ? sum : sum * exp2f((max - new_max) * log2_e);
}

// Symmetric bit for bit: lanes that combine the same two partials from either side agree.
__device__ inline Partial combined(const Partial& a, const Partial& b) {
  const float max = fmaxf(a.max, b.max);
  Partial result{max, scaled(a.sum, a.max, max) + scaled(b.sum, b.max, max), a.spread + b.spread, fmaxf(a.top, b.top),
                 0};
  result.column = a.top > b.top ? a.column : b.top > a.top ? b.column : min(a.column, b.column);
  return result;
}

__device__ inline Partial combined_over(Partial partial, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const Partial other{__shfl_xor_sync(~0u, partial.max, distance), __shfl_xor_sync(~0u, partial.sum, distance),
                        __shfl_xor_sync(~0u, partial.spread, distance), __shfl_xor_sync(~0u, partial.top, distance),
                        __shfl_xor_sync(~0u, partial.column, distance)};
    partial = combined(partial, other);
  }
  return partial;
}

__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

// The partial of the whole row, known to every thread of every block of its cluster. Ends with an arrival at the
// cluster's barrier: wait for it before leaving, since others may still be reading this block's shared memory.
__device__ inline Partial row_total(Partial partial) {
  __shared__ Partial warps[32];
  __shared__ Partial block;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_count = blockDim.x / 32;
  partial = combined_over(partial, 32);
  if (lane == 0) warps[warp] = partial;
  __syncthreads();
  if (warp == 0) {
    partial = combined_over(lane < warp_count ? warps[lane] : empty_partial(), 32);
    if (lane == 0) block = partial;
  }
  cluster_sync();
  const int size = cluster_size();
  partial = combined_over(lane < size ? *in_block(&block, lane) : empty_partial(), most_blocks_a_row);
  partial.max = __shfl_sync(~0u, partial.max, 0);
  partial.sum = __shfl_sync(~0u, partial.sum, 0);
  partial.spread = __shfl_sync(~0u, partial.spread, 0);
  partial.column = __shfl_sync(~0u, partial.column, 0);
  cluster_arrive();
  return partial;
}

}  // namespace inlay::ops::cuda
