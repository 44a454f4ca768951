#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/rope.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

// A row of threads turns V pairs each of one head; the rows of a block share the token's angles, and walk over the
// heads with them in registers.
template <class T, int V>
__global__ void __launch_bounds__(256)
    rotate(T* x, std::int64_t token_stride, std::int64_t head_stride, int heads, const std::int32_t* positions,
           const float* table, int half, float direction) {
  const std::int64_t token = blockIdx.x;
  const float* angles = table + static_cast<std::int64_t>(positions[token]) * half * 2;
  for (int i = static_cast<int>(threadIdx.x) * V; i < half; i += static_cast<int>(blockDim.x) * V) {
    float turn[2 * V];  // cosine and sine, pair by pair
    load(turn, angles + 2 * i);
    for (int head = static_cast<int>(threadIdx.y); head < heads; head += static_cast<int>(blockDim.y)) {
      T* first = x + token * token_stride + head * head_stride + i;
      float a[V], b[V], turned_a[V], turned_b[V];
      load(a, first);
      load(b, first + half);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float c = turn[2 * j], s = turn[2 * j + 1] * direction;
        turned_a[j] = a[j] * c - b[j] * s;
        turned_b[j] = b[j] * c + a[j] * s;
      }
      store(first, turned_a);
      store(first + half, turned_b);
    }
  }
}

// The same for pairs of neighbours: a thread has V elements, which are whole pairs where V is even; else it has two.
template <class T, int V>
__global__ void __launch_bounds__(256)
    rotate_neighbours(T* x, std::int64_t token_stride, std::int64_t head_stride, int heads,
                      const std::int32_t* positions, const float* table, int half, float direction) {
  constexpr int pairs = V == 1 ? 1 : V / 2;
  const std::int64_t token = blockIdx.x;
  const float* angles = table + static_cast<std::int64_t>(positions[token]) * half * 2;
  for (int i = static_cast<int>(threadIdx.x) * pairs; i < half; i += static_cast<int>(blockDim.x) * pairs) {
    float turn[2 * pairs];
#pragma unroll
    for (int j = 0; j < 2 * pairs; ++j) turn[j] = angles[2 * i + j];
    for (int head = static_cast<int>(threadIdx.y); head < heads; head += static_cast<int>(blockDim.y)) {
      T* first = x + token * token_stride + head * head_stride + 2 * i;
      float before[2 * pairs], after[2 * pairs];
      if constexpr (V == 1) {
        float one[1];
        load(one, first), before[0] = one[0];
        load(one, first + 1), before[1] = one[0];
      } else {
        load(before, first);
      }
#pragma unroll
      for (int j = 0; j < 2 * pairs; j += 2) {
        const float c = turn[j], s = turn[j + 1] * direction;
        after[j] = before[j] * c - before[j + 1] * s;
        after[j + 1] = before[j + 1] * c + before[j] * s;
      }
      if constexpr (V == 1) {
        const float one[1] = {after[0]}, other[1] = {after[1]};
        store(first, one);
        store(first + 1, other);
      } else {
        store(first, after);
      }
    }
  }
}

}  // namespace

void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation, RopePairs pairs) {
  const auto half = static_cast<int>(table.dim(1)), heads = static_cast<int>(x.dim(1));
  const float direction = rotation == Rotation::forward ? 1.0f : -1.0f;
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool neighbours = pairs == RopePairs::neighbours;
    const bool vectors = vectors_fit(full_vector<T>, x) && (neighbours ? 2 * half : half) % full_vector<T> == 0 &&
                         reinterpret_cast<std::uintptr_t>(table.data()) % 16 == 0;
    with_width<T>(vectors, [&](auto width) {
      constexpr int threads = 256, pairs_a_thread = width == 1 ? 1 : width / 2;
      const int across = std::min(half / (neighbours ? pairs_a_thread : width), threads);
      const int down = std::min(heads, threads / across);
      const dim3 block(static_cast<unsigned>(across), static_cast<unsigned>(down));
      const auto kernel = neighbours ? rotate_neighbours<T, width> : rotate<T, width>;
      kernel<<<static_cast<unsigned>(x.dim(0)), block, 0, stream_of(exec)>>>(pointer<T>(x), x.stride(0), x.stride(1),
                                                                             heads, pointer<std::int32_t>(positions),
                                                                             pointer<float>(table), half, direction);
    });
  });
  check_launch("rope");
}

}  // namespace inlay::ops::cuda
