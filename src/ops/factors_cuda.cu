#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/factors.h"
#include "ops/master.cuh"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int vector = 8;

template <class T, class Offset, int V>
__global__ void __launch_bounds__(256)
    add_offsets(T* out, const T* base, const Offset* value, const std::int16_t* low, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float sum[V], offset[V];
  load(sum, base + at.col);
  load_master(offset, value + at.col, low + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += offset[i];
  store(out + at.col, sum);
}

// A block a row, each thread in the order of the columns, then a fixed tree.
template <class A, class B, int V>
__global__ void __launch_bounds__(256)
    dot_rows(float* out, const A* a, std::int64_t a_ld, const B* b, std::int64_t b_ld, std::int64_t cols) {
  __shared__ float shared[32];
  const A* left = a + blockIdx.x * a_ld;
  const B* right = b + blockIdx.x * b_ld;
  float sum = 0;
  for (std::int64_t col = std::int64_t{threadIdx.x} * V; col < cols; col += std::int64_t{256} * V) {
    float x[V], y[V];
    load(x, left + col);
    load(y, right + col);
#pragma unroll
    for (int i = 0; i < V; ++i) sum += x[i] * y[i];
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;  // =
}

template <class T, class Offset, int V>
__global__ void __launch_bounds__(256)
    change_each_row(T* scaled, T* change, const T* base, const Offset* value, const std::int16_t* low,
                    const float* scale, const float* scale_offset, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const std::int64_t place = at.row * grid.cols + at.col;
  float start[V], offset[V], product[V], difference[V];
  load(start, base + place);
  load_master(offset, value + place, low + place);
  const float moved = scale_offset[at.row], s = scale[at.row] + moved;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    product[i] = (start[i] + offset[i]) * s;
    difference[i] = offset[i] * s + start[i] * moved;
  }
  store(scaled + place, product);
  store(change + place, difference);
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

void add_offset(Exec& exec, View out, ConstView base, const Master& offset) {
  const ConstView low = offset.low ? offset.low : base;  // an absent tensor must not decide the width
  with_activation_type(base.dtype(), [&](auto type) {
    with_activation_type(offset.value.dtype(), [&](auto offset_type) {
      using T = decltype(type);
      using Offset = decltype(offset_type);
      with_vectors(
          [&](auto width) {
            const RowGrid grid(1, out.size(), width);
            add_offsets<T, Offset, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
                pointer<T>(out), pointer<T>(base), pointer<Offset>(offset.value), pointer<std::int16_t>(offset.low),
                grid);
          },
          flat(out), flat(base), flat(offset.value), flat(low));
    });
  });
  check_launch("add_offset");
}

void row_dot(Exec& exec, View out, ConstView a, ConstView b) {
  with_activation_type(a.dtype(), [&](auto a_type) {
    with_activation_type(b.dtype(), [&](auto b_type) {
      using A = decltype(a_type);
      using B = decltype(b_type);
      with_vectors(
          [&](auto width) {
            dot_rows<A, B, width><<<static_cast<unsigned>(a.dim(0)), 256, 0, stream_of(exec)>>>(
                pointer<float>(out), pointer<A>(a), a.ld(), pointer<B>(b), b.ld(), a.dim(1));
          },
          a, b);
    });
  });
  check_launch("row_dot");
}

void change_rows(Exec& exec, View scaled, View change, const FactorRows& rows) {
  const ConstView low = rows.offset.low ? rows.offset.low : rows.base;
  with_activation_type(rows.base.dtype(), [&](auto type) {
    with_activation_type(rows.offset.value.dtype(), [&](auto offset_type) {
      using T = decltype(type);
      using Offset = decltype(offset_type);
      with_vectors(
          [&](auto width) {
            const RowGrid grid(scaled.dim(0), scaled.dim(1), width);
            change_each_row<T, Offset, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
                pointer<T>(scaled), pointer<T>(change), pointer<T>(rows.base), pointer<Offset>(rows.offset.value),
                pointer<std::int16_t>(rows.offset.low), pointer<float>(rows.scale), pointer<float>(rows.scale_offset),
                grid);
          },
          scaled, change, rows.base, rows.offset.value, low);
    });
  });
  check_launch("change_rows");
}

}  // namespace inlay::ops::cuda
