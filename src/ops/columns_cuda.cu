#include <algorithm>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/columns.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int vector = 8, sum_lanes = 32, sum_slots = 8;

// A block sums 32 vectors of columns over every gridDim.y-th group of 8 rows, into row blockIdx.y of the partial sums.
template <class A, class B, int V>
__global__ void __launch_bounds__(sum_lanes* sum_slots)
    dot_columns(float* partials, const A* a, std::int64_t a_ld, const B* b, std::int64_t b_ld, std::int64_t rows,
                std::int64_t cols) {
  __shared__ float shared[sum_slots][sum_lanes * V];
  const std::int64_t col = (std::int64_t{blockIdx.x} * sum_lanes + threadIdx.x) * V;
  float sum[V] = {};
  if (col < cols) {
    const std::int64_t step = std::int64_t{gridDim.y} * sum_slots;
    // `count` rows: all their loads are under way before the first is used.
    const auto add_rows = [&](std::int64_t row, auto count) {
      Pack<A, V> left[count];
      Pack<B, V> right[count];
#pragma unroll
      for (int k = 0; k < count; ++k) {
        left[k].load(a + (row + k * step) * a_ld + col);
        right[k].load(b + (row + k * step) * b_ld + col);
      }
#pragma unroll
      for (int k = 0; k < count; ++k) {
        float x[V], y[V];
        left[k].get(x);
        right[k].get(y);
#pragma unroll
        for (int i = 0; i < V; ++i) sum[i] += x[i] * y[i];
      }
    };
    constexpr int batch = 4;
    std::int64_t row = std::int64_t{blockIdx.y} * sum_slots + threadIdx.y;
    for (; row + (batch - 1) * step < rows; row += batch * step) add_rows(row, std::integral_constant<int, batch>{});
    for (; row < rows; row += step) add_rows(row, std::integral_constant<int, 1>{});
  }
#pragma unroll
  for (int i = 0; i < V; ++i) shared[threadIdx.y][i * sum_lanes + threadIdx.x] = sum[i];
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float total = 0;
#pragma unroll
    for (int slot = 0; slot < sum_slots; ++slot) total += shared[slot][i * sum_lanes + threadIdx.x];
    partials[std::int64_t{blockIdx.y} * cols + col + i] = total;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(256)
    multiply_columns(T* y, std::int64_t y_ld, const T* x, std::int64_t x_ld, const float* factors, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float value[V], factor[V];
  load(value, x + at.row * x_ld + at.col);
  load(factor, factors + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] *= factor[i];
  store(y + at.row * y_ld + at.col, value);
}

__global__ void divide(float* out, const float* a, const float* b, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = b[i] == 0 ? 0.0f : a[i] / b[i];
}

__global__ void __launch_bounds__(256) take_roots(float* x, std::int64_t size) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < size) x[i] = __fsqrt_rn(x[i]);
}

// Calls body with the width that all tensors allow, rows included.
template <class Body, class... Views>
void with_vectors(const Body& body, const Views&... views) {
  if (vectors_fit(vector, views...)) {
    body(std::integral_constant<int, vector>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void column_dot(Exec& exec, View out, Grad mode, ConstView a, ConstView b, View scratch) {
  const std::int64_t rows = a.dim(0), cols = a.dim(1);
  std::int64_t slices = 0;
  with_activation_type(a.dtype(), [&](auto a_type) {
    with_activation_type(b.dtype(), [&](auto b_type) {
      using A = decltype(a_type);
      using B = decltype(b_type);
      with_vectors(
          [&](auto width) {
            // Eight blocks a multiprocessor fill it; beyond that more slices only add to the second stage.
            const std::int64_t column_blocks = (cols + sum_lanes * width - 1) / (sum_lanes * width);
            const std::int64_t wanted = (8 * gpu(exec).multiprocessors() + column_blocks - 1) / column_blocks;
            slices = std::min({wanted, scratch.dim(0), (rows + sum_slots - 1) / sum_slots});
            const dim3 blocks(static_cast<unsigned>(column_blocks), static_cast<unsigned>(slices));
            dot_columns<A, B, width><<<blocks, dim3(sum_lanes, sum_slots), 0, stream_of(exec)>>>(
                pointer<float>(scratch), pointer<A>(a), a.ld(), pointer<B>(b), b.ld(), rows, cols);
          },
          a, b);
    });
  });
  check_launch("column_dot");
  sum_partial_rows(stream_of(exec), pointer<float>(out), pointer<float>(scratch), slices, cols,
                   mode == Grad::accumulate);
}

void scale_columns(Exec& exec, View y, ConstView x, ConstView factors) {
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(x.dim(0), x.dim(1), width);
          multiply_columns<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<T>(y), y.ld(), pointer<T>(x), x.ld(), pointer<float>(factors), grid);
        },
        y, x, factors);
  });
  check_launch("scale_columns");
}

void square_roots(Exec& exec, View x) {
  take_roots<<<static_cast<unsigned>((x.size() + 255) / 256), 256, 0, stream_of(exec)>>>(pointer<float>(x), x.size());
  check_launch("row_norms");
}

void quotients(Exec& exec, View out, ConstView a, ConstView b) {
  const std::int64_t count = out.size();
  divide<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream_of(exec)>>>(
      pointer<float>(out), pointer<float>(a), pointer<float>(b), count);
  check_launch("quotients");
}

}  // namespace inlay::ops::cuda
