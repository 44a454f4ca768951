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

}  // namespace

void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation) {
  const auto half = static_cast<int>(table.dim(1)), heads = static_cast<int>(x.dim(1));
  const float direction = rotation == Rotation::forward ? 1.0f : -1.0f;
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors = vectors_fit(full_vector<T>, x) && half % full_vector<T> == 0 &&
                         reinterpret_cast<std::uintptr_t>(table.data()) % 16 == 0;
    with_width<T>(vectors, [&](auto width) {
      constexpr int threads = 256;
      const int across = std::min(half / width, threads);
      const int down = std::min(heads, threads / across);
      const dim3 block(static_cast<unsigned>(across), static_cast<unsigned>(down));
      rotate<T, width><<<static_cast<unsigned>(x.dim(0)), block, 0, stream_of(exec)>>>(
          pointer<T>(x), x.stride(0), x.stride(1), heads, pointer<std::int32_t>(positions), pointer<float>(table), half,
          direction);
    });
  });
  check_launch("rope");
}

}  // namespace inlay::ops::cuda
