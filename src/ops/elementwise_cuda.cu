#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/elementwise.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class T, int V>
__global__ void __launch_bounds__(256) add_row(T* y, std::int64_t ld, const T* bias, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float sum[V], b[V];
  load(sum, y + at.row * ld + at.col);
  load(b, bias + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += b[i];
  store(y + at.row * ld + at.col, sum);
}

template <class T, int V>
__global__ void __launch_bounds__(256) add_rows(T* y, RowStrides y_rows, const T* x, RowStrides x_rows, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float sum[V], other[V];
  load(sum, y + y_rows(at.row) + at.col);
  load(other, x + x_rows(at.row) + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += other[i];
  store(y + y_rows(at.row) + at.col, sum);
}

// y may be x.
template <class T, int V>
__global__ void __launch_bounds__(256)
    scale_elements(T* y, RowStrides y_rows, const T* x, RowStrides x_rows, float factor, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float value[V];
  load(value, x + x_rows(at.row) + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] *= factor;
  store(y + y_rows(at.row) + at.col, value);
}

template <int V>
__global__ void __launch_bounds__(256) cap_elements(float* x, float cap, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float value[V];
  float* const place = x + at.row * grid.cols + at.col;
  load(value, place);
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] = cap * tanhf(value[i] / cap);
  store(place, value);
}

template <class To, class From, int V>
__global__ void __launch_bounds__(256)
    cast_rows(To* to, RowStrides to_rows, const From* from, RowStrides from_rows, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float x[V];
  load(x, from + from_rows(at.row) + at.col);
  store(to + to_rows(at.row) + at.col, x);
}

// Where one side is fp64: eight bytes a thread are coalesced already.
template <class To, class From>
__global__ void __launch_bounds__(256)
    cast_rows_f64(To* to, RowStrides to_rows, const From* from, RowStrides from_rows, RowGrid grid) {
  const RowPlace at = place_in<1>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const From value = from[from_rows(at.row) + at.col];
  To* const target = to + to_rows(at.row) + at.col;
  if constexpr (std::is_same_v<To, From>) {
    *target = value;
  } else if constexpr (std::is_same_v<To, double>) {
    *target = static_cast<double>(static_cast<float>(value));
  } else {
    *target = static_cast<To>(static_cast<float>(value));
  }
}

template <class T>
__global__ void __launch_bounds__(256) multiply_rows(T* x, std::int64_t ld, const T* factors, RowGrid grid) {
  const RowPlace at = place_in<1>(grid.rows, grid.cols, grid.column_blocks);
  if (at.inside) x[at.row * ld + at.col] *= factors[at.row];
}

template <class T, int V>
__global__ void __launch_bounds__(256)
    gather(T* to, std::int64_t to_ld, const T* from, std::int64_t from_ld, const std::int32_t* rows, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  Pack<T, V> pack;
  pack.load(from + rows[at.row] * from_ld + at.col);
  pack.store(to + at.row * to_ld + at.col);
}

// Where `row` stands among `count` ascending numbers, or -1.
__device__ __forceinline__ int find_row(const std::int32_t* rows, int count, int row) {
  int begin = 0, end = count;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (rows[middle] < row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < count && rows[begin] == row ? begin : -1;
}

// By the rows of `to`: each looks up whether it was selected, so every row is written once, cleared or not.
template <class T, int V>
__global__ void __launch_bounds__(256) scatter(T* to, std::int64_t to_ld, const T* from, std::int64_t from_ld,
                                               const std::int32_t* rows, int count, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const int source = find_row(rows, count, static_cast<int>(at.row));
  Pack<T, V> pack;
  if (source < 0) {
    pack.clear();
  } else {
    pack.load(from + source * from_ld + at.col);
  }
  pack.store(to + at.row * to_ld + at.col);
}

constexpr int sum_lanes = 32, sum_slots = 8;

// A block sums 32 vectors of columns over every gridDim.y-th group of 8 rows, into row blockIdx.y of the partial sums.
template <class T, int V>
__global__ void __launch_bounds__(sum_lanes* sum_slots)
    sum_columns(float* partials, const T* x, std::int64_t ld, std::int64_t rows, std::int64_t cols) {
  __shared__ float shared[sum_slots][sum_lanes * V];
  const std::int64_t col = (std::int64_t{blockIdx.x} * sum_lanes + threadIdx.x) * V;
  float sum[V] = {};
  if (col < cols) {
    const std::int64_t step = std::int64_t{gridDim.y} * sum_slots;
    const std::int64_t first = std::int64_t{blockIdx.y} * sum_slots + threadIdx.y;
    add_up<T>(sum, first, rows, step, [&](std::int64_t row) { return x + row * ld + col; });
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

}  // namespace

void add_bias(Exec& exec, View y, ConstView bias) {
  with_activation_type(y.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, y, bias), [&](auto width) {
      const RowGrid grid(y.dim(0), y.dim(1), width);
      add_row<T, width>
          <<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(y), y.ld(), pointer<T>(bias), grid);
    });
  });
  check_launch("add_bias");
}

void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, View scratch) {
  const std::int64_t rows = dy.dim(0), cols = dy.dim(1);
  std::int64_t slices = 0;
  with_activation_type(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, dy), [&](auto width) {
      // Eight blocks a multiprocessor fill it; beyond that more slices only add to the second stage.
      const std::int64_t column_blocks = (cols + sum_lanes * width - 1) / (sum_lanes * width);
      const std::int64_t wanted = (8 * gpu(exec).multiprocessors() + column_blocks - 1) / column_blocks;
      slices = std::min({wanted, scratch.dim(0), (rows + sum_slots - 1) / sum_slots});
      const dim3 blocks(static_cast<unsigned>(column_blocks), static_cast<unsigned>(slices));
      sum_columns<T, width><<<blocks, dim3(sum_lanes, sum_slots), 0, stream_of(exec)>>>(
          pointer<float>(scratch), pointer<T>(dy), dy.ld(), rows, cols);
    });
  });
  check_launch("bias_backward");
  sum_partial_rows(stream_of(exec), pointer<float>(dbias), pointer<float>(scratch), slices, cols,
                   mode == Grad::accumulate);
}

void add(Exec& exec, View y, ConstView x) {
  if (y.contiguous() && x.contiguous()) y = flat(y), x = flat(x);
  with_activation_type(y.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, y, x), [&](auto width) {
      const RowGrid grid(y.rows(), y.cols(), width);
      add_rows<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(y), RowStrides(y), pointer<T>(x),
                                                                            RowStrides(x), grid);
    });
  });
  check_launch("add");
}

void scale(Exec& exec, View y, ConstView x, float factor) {
  if (y.contiguous() && x.contiguous()) y = flat(y), x = flat(x);
  with_activation_type(y.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, y, x), [&](auto width) {
      const RowGrid grid(y.rows(), y.cols(), width);
      scale_elements<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(y), RowStrides(y), pointer<T>(x), RowStrides(x), factor, grid);
    });
  });
  check_launch("scale");
}

void softcap(Exec& exec, View x, float cap) {
  x = flat(x);
  with_width<float>(vectors_fit(full_vector<float>, x), [&](auto width) {
    const RowGrid grid(x.rows(), x.cols(), width);
    cap_elements<width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<float>(x), cap, grid);
  });
  check_launch("softcap");
}

namespace {

void cast_f64(Exec& exec, View to, ConstView from) {
  const RowGrid grid(to.rows(), to.cols(), 1);
  const auto launch = [&](auto to_type, auto from_type) {
    using To = decltype(to_type);
    using From = decltype(from_type);
    cast_rows_f64<To, From><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
        pointer<To>(to), RowStrides(to), pointer<From>(from), RowStrides(from), grid);
  };
  if (to.dtype() == from.dtype()) {
    launch(double{}, double{});
  } else if (to.dtype() == DType::f64) {
    with_floating_type(from.dtype(), [&](auto from_type) { launch(double{}, from_type); });
  } else {
    with_floating_type(to.dtype(), [&](auto to_type) { launch(to_type, double{}); });
  }
  check_launch("cast");
}

}  // namespace

void cast(Exec& exec, View to, ConstView from) {
  if (to.contiguous() && from.contiguous()) to = flat(to), from = flat(from);
  if (to.dtype() == DType::f64 || from.dtype() == DType::f64) return cast_f64(exec, to, from);
  constexpr int vector = 8;
  const auto launch = [&](auto to_type, auto from_type, auto width) {
    using To = decltype(to_type);
    using From = decltype(from_type);
    const RowGrid grid(to.rows(), to.cols(), width);
    cast_rows<To, From, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
        pointer<To>(to), RowStrides(to), pointer<From>(from), RowStrides(from), grid);
  };
  with_floating_type(to.dtype(), [&](auto to_type) {
    with_floating_type(from.dtype(), [&](auto from_type) {
      if (vectors_fit(vector, to, from)) {
        launch(to_type, from_type, std::integral_constant<int, vector>{});
      } else {
        launch(to_type, from_type, std::integral_constant<int, 1>{});
      }
    });
  });
  check_launch("cast");
}

void scale_rows(Exec& exec, View x, ConstView factors) {
  const RowGrid grid(x.dim(0), x.dim(1), 1);
  const auto launch = [&](auto type) {
    using T = decltype(type);
    multiply_rows<T>
        <<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(x), x.ld(), pointer<T>(factors), grid);
  };
  x.dtype() == DType::f64 ? launch(double{}) : launch(float{});
  check_launch("scale_rows");
}

void gather_rows(Exec& exec, View to, ConstView from, ConstView rows) {
  with_activation_type(to.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, to, from), [&](auto width) {
      const RowGrid grid(to.dim(0), to.dim(1), width);
      gather<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(to), to.ld(), pointer<T>(from),
                                                                          from.ld(), pointer<std::int32_t>(rows), grid);
    });
  });
  check_launch("gather_rows");
}

void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows) {
  const auto count = static_cast<int>(rows.dim(0));
  with_activation_type(to.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors = vectors_fit(full_vector<T>, to) && (count == 0 || vectors_fit(full_vector<T>, from));
    with_width<T>(vectors, [&](auto width) {
      const RowGrid grid(to.dim(0), to.dim(1), width);
      scatter<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(to), to.ld(), pointer<T>(from), from.ld(), pointer<std::int32_t>(rows), count, grid);
    });
  });
  check_launch("scatter_rows");
}

}  // namespace inlay::ops::cuda
