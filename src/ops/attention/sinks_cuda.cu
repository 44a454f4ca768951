#include <algorithm>
#include <bit>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/attention/sinks.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class T>
__device__ __forceinline__ float number(const T* at) {
  float value[1];
  load(value, at);
  return value[0];
}

// A thread moves one vector of one head; lse is corrected afterwards, when nobody reads it any more.
template <class T, int V>
__global__ void __launch_bounds__(256) scale_heads(T* out, RowStrides rows, const float* lse, std::int64_t lse_stride,
                                                   const T* sinks, int heads, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const std::uint32_t token = at.row / heads, head = at.row - token * heads;
  const float factor = 1.0f / (1.0f + expf(number(sinks + head) - lse[token * lse_stride + head]));
  float x[V];
  load(x, out + rows(at.row) + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] *= factor;
  store(out + rows(at.row) + at.col, x);
}

template <class T>
__global__ void __launch_bounds__(256)
    add_sinks(float* lse, std::int64_t lse_stride, const T* sinks, int heads, std::int64_t count) {
  const std::int64_t index = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (index >= count) return;
  const std::int64_t token = index / heads;
  const int head = static_cast<int>(index - token * heads);
  float& total = lse[token * lse_stride + head];
  const float sink = number(sinks + head);
  total = fmaxf(total, sink) + log1pf(expf(-fabsf(total - sink)));
}

constexpr int warps = 8;

struct SumTask {
  RowStrides dout, out;
  std::int64_t lse_stride, tokens;
  int heads, width, lanes;  // lanes of a warp that share a token
};

// A block for every head and slice of the tokens; some lanes of a warp for every token.
template <class T, int V>
__global__ void __launch_bounds__(32 * warps)
    sum_shares(float* partials, const T* dout, const T* out, const float* lse, const T* sinks, SumTask task) {
  __shared__ float shared[32];
  const int head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % task.lanes;
  const float sink = number(sinks + head);
  const int at_once = 32 * warps / task.lanes;
  float sum = 0.0f;
  // The bounds are the same for all threads: all of them take part in the sums.
  for (std::int64_t begin = std::int64_t{blockIdx.y} * at_once; begin < task.tokens;
       begin += std::int64_t{gridDim.y} * at_once) {
    const std::int64_t token = begin + static_cast<int>(threadIdx.x) / task.lanes;
    float product = 0.0f;
    if (token < task.tokens) {
      const auto row = static_cast<std::uint32_t>(token * task.heads + head);
      for (int col = lane * V; col < task.width; col += task.lanes * V) {
        float x[V], y[V];
        load(x, dout + task.dout(row) + col);
        load(y, out + task.out(row) + col);
#pragma unroll
        for (int i = 0; i < V; ++i) product += x[i] * y[i];
      }
    }
    product = warp_sum(product, task.lanes);
    if (lane == 0 && token < task.tokens) sum -= expf(sink - lse[token * task.lse_stride + head]) * product;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[std::int64_t{blockIdx.y} * task.heads + head] = sum;
}

}  // namespace

void attention_sinks_forward(Exec& exec, View out, View lse, ConstView sinks) {
  const auto heads = static_cast<int>(out.dim(1));
  const std::int64_t count = out.dim(0) * heads;
  with_activation_type(out.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, out), [&](auto width) {
      const RowGrid grid(count, out.dim(2), width);
      scale_heads<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(out), RowStrides(out), pointer<float>(lse), lse.stride(0), pointer<T>(sinks), heads, grid);
    });
    add_sinks<T><<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream_of(exec)>>>(
        pointer<float>(lse), lse.stride(0), pointer<T>(sinks), heads, count);
  });
  check_launch("attention_sinks_forward");
}

void attention_sinks_backward(Exec& exec, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks, View scratch) {
  const std::int64_t slices = scratch.dim(0);
  const auto width = static_cast<int>(out.dim(2));
  with_activation_type(out.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, out, dout), [&](auto vector) {
      const int vectors = (width + vector - 1) / vector;
      const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(vectors, 32))));
      const SumTask task{
          RowStrides(dout), RowStrides(out), lse.stride(0), out.dim(0), static_cast<int>(out.dim(1)), width, lanes};
      const dim3 blocks(static_cast<unsigned>(out.dim(1)), static_cast<unsigned>(slices));
      sum_shares<T, vector><<<blocks, 32 * warps, 0, stream_of(exec)>>>(
          pointer<float>(scratch), pointer<T>(dout), pointer<T>(out), pointer<float>(lse), pointer<T>(sinks), task);
    });
  });
  check_launch("attention_sinks_backward");
  sum_partial_rows(stream_of(exec), pointer<float>(dsinks), pointer<float>(scratch), slices, out.dim(1),
                   mode == Grad::accumulate);
}

}  // namespace inlay::ops::cuda
