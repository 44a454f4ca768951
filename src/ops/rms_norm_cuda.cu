#include <bit>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/rms_norm.h"

// A row lives in the registers of its threads, P vectors each, from the one read to the one write. Short rows share a
// warp or a block (blockDim.y of them); a long row has a block to itself.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

// Sums of one row, known to all its threads.
struct RowSums {
  float squares = 0, products = 0;
};

// `partials` is shared memory for 32 numbers; consecutive calls alternate between two of them.
__device__ __forceinline__ RowSums row_sums(RowSums sums, RowSums* partials) {
  const int across = static_cast<int>(blockDim.x);
  const int width = across < 32 ? across : 32;
  sums.squares = warp_sum(sums.squares, width);
  sums.products = warp_sum(sums.products, width);
  if (across <= 32) return sums;
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = sums;
  __syncthreads();
  RowSums total;
  for (int warp = 0; warp < across / 32; ++warp) {
    total.squares += partials[warp].squares;
    total.products += partials[warp].products;
  }
  return total;
}

template <class T>
struct Rows {
  T* data;
  RowStrides strides;
  __device__ __forceinline__ T* operator[](std::uint32_t row) const { return data + strides(row); }
};

template <class T, class AnyView>
auto rows_of(const AnyView& view) {
  auto* data = pointer<T>(view);
  return Rows<std::remove_pointer_t<decltype(data)>>{data, RowStrides(view)};
}

template <class T>
struct ForwardArgs {
  Rows<T> out, sum;
  Rows<const T> x, delta;
  const T* weight;
  std::uint32_t rows;
  int cols;
  float inverse_cols;
  NormSpec norm;
};

template <class T, int V, int P, bool residual>
__global__ void __launch_bounds__(512) forward(ForwardArgs<T> args) {
  __shared__ RowSums partials[32];
  const std::uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  const int cols = row < args.rows ? args.cols : 0;  // a row beyond the last has none
  const auto column = [&](int p) { return (static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x)) * V; };

  Pack<T, V> held[P], delta[P];
  const T* x_row = args.x[row];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    held[p].clear();
    if (column(p) < cols) held[p].load(x_row + column(p));
  }
  if constexpr (residual) {
    const T* delta_row = args.delta[row];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      delta[p].clear();
      if (column(p) < cols) delta[p].load(delta_row + column(p));
    }
  }
  RowSums sums;
  T* sum_row = residual ? args.sum[row] : nullptr;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    float x[V];
    held[p].get(x);
    if constexpr (residual) {
      float d[V];
      delta[p].get(d);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] += d[i];
      held[p].set(x);  // the norm is of the sum as it is stored
      held[p].get(x);
      if (column(p) < cols) held[p].store(sum_row + column(p));
    }
#pragma unroll
    for (int i = 0; i < V; ++i) sums.squares += x[i] * x[i];
  }
  Pack<T, V> weight[P];  // under way while the row is summed up
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column(p) < cols) weight[p].load(args.weight + column(p));
  }
  sums = row_sums(sums, partials);
  const float rstd = rsqrtf(sums.squares * args.inverse_cols + args.norm.eps);
  T* out_row = args.out[row];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column(p) >= cols) continue;
    float x[V], w[V];
    held[p].get(x);
    weight[p].get(w);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] *= rstd * (w[i] + args.norm.offset);
    store(out_row + column(p), x);
  }
}

template <class T>
struct BackwardArgs {
  Rows<T> dx;
  Grad dx_mode;
  Rows<const T> dout, x;
  const T* weight;
  float* dweight_partials;  // [gridDim.x, cols]
  std::uint32_t rows;
  int cols;
  float inverse_cols;
  NormSpec norm;
};

// Threads of a row at most, and blocks a multiprocessor should hold: what the registers of a row leave room for.
template <class T, int V>
inline constexpr int backward_threads = sizeof(T) == 2 && V > 1 ? 256 : 512;
template <class T, int V, int P>
inline constexpr int backward_residents = backward_threads<T, V> == 512 ? 1
                                          : P <= 2                      ? 4
                                          : P <= 4                      ? 2
                                                                        : 1;

// y = x · rstd · w with w = offset + weight: dx = rstd · (dy · w) - x · rstd³ / cols · Σ dy · w · x;  dw = Σ over rows
// of dy · x · rstd. A block walks over its rows and adds up its share of dw in registers, in the order of the rows.
template <class T, int V, int P, bool wants_dweight>
__global__ void __launch_bounds__(backward_threads<T, V>, backward_residents<T, V, P>) backward(BackwardArgs<T> args) {
  __shared__ RowSums partials[2][32];
  extern __shared__ float slots[];  // [blockDim.y, cols], where blocks hold several rows
  const auto column = [&](int p) { return (static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x)) * V; };
  const bool accumulate = args.dx_mode == Grad::accumulate;
  float dweight[wants_dweight ? P : 1][V] = {};
  int turn = 0;
  for (std::uint32_t first = blockIdx.x * blockDim.y; first < args.rows; first += gridDim.x * blockDim.y) {
    const std::uint32_t row = first + threadIdx.y;
    const int cols = row < args.rows ? args.cols : 0;  // a row beyond the last has none
    const T* x_row = args.x[row];
    const T* dout_row = args.dout[row];
    T* dx_row = args.dx[row];
    Pack<T, V> held_x[P], held_dout[P], held_dx[P], weight[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      held_x[p].clear();
      held_dout[p].clear();
      held_dx[p].clear();
      if (column(p) >= cols) continue;
      held_x[p].load(x_row + column(p));
      held_dout[p].load(dout_row + column(p));
      weight[p].load(args.weight + column(p));
      if (accumulate) held_dx[p].load(dx_row + column(p));
    }
    RowSums sums;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column(p) >= cols) continue;
      float x[V], dout[V], w[V];
      held_x[p].get(x);
      held_dout[p].get(dout);
      weight[p].get(w);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums.squares += x[i] * x[i];
        sums.products += dout[i] * (w[i] + args.norm.offset) * x[i];
      }
    }
    sums = row_sums(sums, partials[turn]);
    turn ^= 1;
    const float rstd = rsqrtf(sums.squares * args.inverse_cols + args.norm.eps);
    const float along = sums.products * args.inverse_cols * rstd * rstd * rstd;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column(p) >= cols) continue;
      float x[V], dout[V];
      held_x[p].get(x);
      held_dout[p].get(dout);
      if constexpr (wants_dweight) {
#pragma unroll
        for (int i = 0; i < V; ++i) dweight[p][i] += dout[i] * (x[i] * rstd);
      }
      if (args.dx_mode == Grad::skip) continue;
      float w[V], dx[V];
      weight[p].get(w);
      held_dx[p].get(dx);
#pragma unroll
      for (int i = 0; i < V; ++i) {  // += onto what was loaded, or 0
        dx[i] += rstd * (dout[i] * (w[i] + args.norm.offset)) - along * x[i];
      }
      store(dx_row + column(p), dx);
    }
  }
  if constexpr (wants_dweight) {
    float* mine = args.dweight_partials + std::int64_t{blockIdx.x} * args.cols;
    if (blockDim.y == 1) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if (column(p) < args.cols) store(mine + column(p), dweight[p]);
      }
      return;
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (column(p) < args.cols) slots[static_cast<int>(threadIdx.y) * args.cols + column(p) + i] = dweight[p][i];
      }
    }
    __syncthreads();
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    for (int col = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); col < args.cols; col += threads) {
      float total = 0;
      for (int slot = 0; slot < static_cast<int>(blockDim.y); ++slot) total += slots[slot * args.cols + col];
      mine[col] = total;
    }
  }
}

// How threads lie over rows of so many vectors: `across` of them a row, each with `per` vectors, `down` rows a block.
struct RowShape {
  int per, across, down;
};

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// More vectors a thread mean more loads in flight, fewer mean more threads: `least` and `widest` say which. Scalar
// kernels are there for odd sizes only, and few of them are built.
RowShape shape_of(int vectors, int width, int least, int widest) {
  if (width == 1) least = 4;
  if (vectors <= 32) {
    const int across = static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors)));
    return {1, across, 256 / across};
  }
  if (vectors <= 32 * least) return {least, 32, 8};
  int per = least;
  while (per * widest < vectors) per *= width == 1 ? 8 : 2;
  return {per, ceil_div(ceil_div(vectors, per), 32) * 32, 1};
}

template <int V, class Body>
void with_per_thread(int per, const Body& body) {
  if constexpr (V == 1) {
    if (per == 1) return body(std::integral_constant<int, 1>{});
    if (per == 4) return body(std::integral_constant<int, 4>{});
    if (per == 32) return body(std::integral_constant<int, 32>{});
  } else {
    if (per == 1) return body(std::integral_constant<int, 1>{});
    if (per == 2) return body(std::integral_constant<int, 2>{});
    if (per == 4) return body(std::integral_constant<int, 4>{});
    if (per == 8) return body(std::integral_constant<int, 8>{});
  }
  INLAY_ASSERT(false, "rms_norm: rows of more than 16384 numbers are too long for one block");
}

template <bool residual>
void launch_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight, NormSpec norm) {
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, out, x, weight) && (!residual || vectors_fit(full_vector<T>, sum, delta));
    with_width<T>(vectors, [&](auto width) {
      const auto rows = static_cast<std::uint32_t>(x.rows());
      const auto cols = static_cast<int>(x.cols());
      const RowShape shape = shape_of(ceil_div(cols, width), width, 4, 512);
      const ForwardArgs<T> args{.out = rows_of<T>(out),
                                .sum = rows_of<T>(sum),
                                .x = rows_of<T>(x),
                                .delta = rows_of<T>(delta),
                                .weight = pointer<T>(weight),
                                .rows = rows,
                                .cols = cols,
                                .inverse_cols = 1.0f / static_cast<float>(cols),
                                .norm = norm};
      const auto blocks = (rows + static_cast<unsigned>(shape.down) - 1) / static_cast<unsigned>(shape.down);
      const dim3 threads(static_cast<unsigned>(shape.across), static_cast<unsigned>(shape.down));
      with_per_thread<width>(shape.per, [&](auto per) {
        forward<T, width, per, residual><<<blocks, threads, 0, stream_of(exec)>>>(args);
      });
    });
  });
  check_launch("rms_norm_forward");
}

// Returns the rows of scratch that hold partial sums.
template <class T, int V, int P, bool wants_dweight>
std::int64_t launch_backward(Exec& exec, const BackwardArgs<T>& args, RowShape shape, std::int64_t scratch_rows) {
  const auto kernel = backward<T, V, P, wants_dweight>;
  const int threads = shape.across * shape.down;
  const bool several_rows = wants_dweight && shape.down > 1;
  const std::size_t shared = several_rows ? sizeof(float) * static_cast<std::size_t>(shape.down * args.cols) : 0;
  std::int64_t blocks = (args.rows + static_cast<unsigned>(shape.down) - 1) / static_cast<unsigned>(shape.down);
  if (wants_dweight) {
    // As many as run at once: more would not be faster, and each writes a row of scratch.
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared), "rms_norm_backward");
    INLAY_ASSERT(resident > 0, "rms_norm_backward: rows of {} do not fit a block", args.cols);
    blocks = std::min({blocks, scratch_rows, std::int64_t{resident} * gpu(exec).multiprocessors()});
  }
  const dim3 block(static_cast<unsigned>(shape.across), static_cast<unsigned>(shape.down));
  kernel<<<static_cast<unsigned>(blocks), block, shared, stream_of(exec)>>>(args);
  check_launch("rms_norm_backward");
  return blocks;
}

}  // namespace

void rms_norm_forward(Exec& exec, View out, ConstView x, ConstView weight, NormSpec norm) {
  launch_forward<false>(exec, out, View(), x, ConstView(), weight, norm);
}

void residual_rms_norm_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm) {
  launch_forward<true>(exec, out, sum, x, delta, weight, norm);
}

void rms_norm_backward(Exec& exec, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm,
                       View scratch) {
  const bool wants_dx = grads.dx_mode != Grad::skip, wants_dweight = grads.dweight_mode != Grad::skip;
  std::int64_t partial_rows = 0;
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, dout, x, weight) && (!wants_dx || vectors_fit(full_vector<T>, grads.dx));
    with_width<T>(vectors, [&](auto width) {
      const auto cols = static_cast<int>(x.cols());
      const RowShape shape = shape_of(ceil_div(cols, width), width, 2, backward_threads<T, width>);
      const BackwardArgs<T> args{.dx = rows_of<T>(grads.dx),
                                 .dx_mode = grads.dx_mode,
                                 .dout = rows_of<T>(dout),
                                 .x = rows_of<T>(x),
                                 .weight = pointer<T>(weight),
                                 .dweight_partials = pointer<float>(scratch),
                                 .rows = static_cast<std::uint32_t>(x.rows()),
                                 .cols = cols,
                                 .inverse_cols = 1.0f / static_cast<float>(cols),
                                 .norm = norm};
      with_per_thread<width>(shape.per, [&](auto per) {
        partial_rows = wants_dweight ? launch_backward<T, width, per, true>(exec, args, shape, scratch.dim(0))
                                     : launch_backward<T, width, per, false>(exec, args, shape, 0);
      });
    });
  });
  if (!wants_dweight) return;
  sum_partial_rows(stream_of(exec), pointer<float>(grads.dweight), pointer<float>(scratch), partial_rows, x.cols(),
                   grads.dweight_mode == Grad::accumulate);
}

}  // namespace inlay::ops::cuda
