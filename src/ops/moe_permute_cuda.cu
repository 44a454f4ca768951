#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/moe_permute.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int sort_warps = 8, pairs_a_warp = static_cast<int>(sort_block) / sort_warps;

// ---- sorting: each block counts its pairs, one block adds the counts up, each block places its pairs ---------------

// counts[block][e]. Integers, so that the order of the additions does not matter.
__global__ void __launch_bounds__(32 * sort_warps)
    count_pairs(std::int32_t* counts, const std::int32_t* experts, std::int64_t pairs, int count) {
  extern __shared__ int histogram[];
  for (int e = static_cast<int>(threadIdx.x); e < count; e += 32 * sort_warps) histogram[e] = 0;
  __syncthreads();
  const std::int64_t begin = std::int64_t{blockIdx.x} * sort_block;
  for (std::int64_t i = begin + threadIdx.x; i < min(begin + sort_block, pairs); i += 32 * sort_warps) {
    atomicAdd(histogram + experts[i], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < count; e += 32 * sort_warps) {
    counts[std::int64_t{blockIdx.x} * count + e] = histogram[e];
  }
}

// counts[block][e] becomes the first row of that block's pairs with expert e; a thread for every expert.
__global__ void __launch_bounds__(1024) add_counts(std::int32_t* offsets, std::int32_t* counts, int blocks, int count) {
  __shared__ int totals[1024];
  const int e = static_cast<int>(threadIdx.x);
  int total = 0;
  if (e < count) {
    for (int block = 0; block < blocks; ++block) total += counts[std::int64_t{block} * count + e];
  }
  totals[e] = total;
  __syncthreads();
  if (e >= count) return;
  int begin = 0;
  for (int before = 0; before < e; ++before) begin += totals[before];
  offsets[e] = begin;
  if (e == count - 1) offsets[count] = begin + total;
  for (int block = 0; block < blocks; ++block) {
    std::int32_t* at = counts + std::int64_t{block} * count + e;
    const int here = *at;
    *at = begin;
    begin += here;
  }
}

// A warp takes consecutive pairs, 32 at a time; lanes with the same expert stand in the order of their lanes.
__global__ void __launch_bounds__(32 * sort_warps)
    place_pairs(std::int32_t* pair_of_row, std::int32_t* row_of_pair, const std::int32_t* first_rows,
                const std::int32_t* experts, std::int64_t pairs, int count) {
  extern __shared__ int next[];  // [warps, count]: first how many, then the next free row
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < sort_warps * count; i += 32 * sort_warps) next[i] = 0;
  __syncthreads();
  int* mine = next + warp * count;
  const std::int64_t begin = std::int64_t{blockIdx.x} * sort_block + std::int64_t{warp} * pairs_a_warp;
  // body(expert, lanes with the same one, pair) for every pair of the warp; lanes without a pair have expert -1.
  const auto each = [&](const auto& body) {
    for (int i = 0; i < pairs_a_warp; i += 32) {
      const std::int64_t pair = begin + i + lane;
      const int expert = pair < pairs ? experts[pair] : -1;
      const unsigned same = __match_any_sync(all_lanes, expert);
      body(expert, same, pair);
      if (expert >= 0 && (same & ((1u << lane) - 1)) == 0) mine[expert] += __popc(same);
      __syncwarp();
    }
  };
  each([](int, unsigned, std::int64_t) {});
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < count; e += 32 * sort_warps) {
    int row = first_rows[std::int64_t{blockIdx.x} * count + e];
    for (int w = 0; w < sort_warps; ++w) {
      const int here = next[w * count + e];
      next[w * count + e] = row;
      row += here;
    }
  }
  __syncthreads();
  each([&](int expert, unsigned same, std::int64_t pair) {
    if (expert >= 0) {
      const int row = mine[expert] + __popc(same & ((1u << lane) - 1));
      row_of_pair[pair] = row;
      pair_of_row[row] = static_cast<std::int32_t>(pair);
    }
    __syncwarp();
  });
}

// ---- rows ---------------------------------------------------------------------------------------------------------

constexpr int gather_threads = 128, at_once = 3;

// A block for every row. A thread asks for all of its vectors before it stores the first.
template <class T, int V>
__global__ void __launch_bounds__(gather_threads)
    gather(T* to, std::int64_t to_ld, const T* from, std::int64_t from_ld, const std::int32_t* pairs, int k, int cols) {
  const std::int64_t row = blockIdx.x;
  const T* source = from + pairs[row] / k * from_ld;
  for (int begin = static_cast<int>(threadIdx.x) * V; begin < cols; begin += at_once * gather_threads * V) {
    Pack<T, V> packs[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      if (begin + j * gather_threads * V < cols) packs[j].load(source + begin + j * gather_threads * V);
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      if (begin + j * gather_threads * V < cols) packs[j].store(to + row * to_ld + begin + j * gather_threads * V);
    }
  }
}

template <class T>
struct CombineTask {
  T* out;
  const T *y, *bias, *residual;  // bias and residual may be null
  std::int64_t out_ld, y_ld, bias_ld, residual_ld;
  const float* weights;  // or null
  const std::int32_t *experts, *rows;
  int k;
};

template <class T, int V>
__global__ void __launch_bounds__(256) combine_rows(CombineTask<T> task, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float sum[V] = {};
  if (task.residual != nullptr) load(sum, task.residual + at.row * task.residual_ld + at.col);
  const std::int64_t first = std::int64_t{at.row} * task.k;
#pragma unroll 4
  for (int j = 0; j < task.k; ++j) {
    const std::int64_t pair = first + j;
    const float weight = task.weights != nullptr ? task.weights[pair] : 1.0f;
    float y[V], bias[V] = {};
    load(y, task.y + task.rows[pair] * task.y_ld + at.col);
    if (task.bias != nullptr) load(bias, task.bias + task.experts[pair] * task.bias_ld + at.col);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += weight * (y[i] + bias[i]);
  }
  store(task.out + at.row * task.out_ld + at.col, sum);
}

constexpr int spread_threads = 128, choices_at_once = 4;

// A block for every token: its gradient goes to the rows of all its choices, and meets their biases on the way.
template <class T, int V>
__global__ void __launch_bounds__(spread_threads) spread_rows(T* dy, std::int64_t dy_ld, float* dweights, const T* dout,
                                                              std::int64_t dout_ld, CombineTask<T> task, int cols) {
  __shared__ float partials[choices_at_once][32];
  const T* from = dout + std::int64_t{blockIdx.x} * dout_ld;
  const std::int64_t first = std::int64_t{blockIdx.x} * task.k;
  for (int begin = 0; begin < task.k; begin += choices_at_once) {
    float sums[choices_at_once] = {};
    for (int col = static_cast<int>(threadIdx.x) * V; col < cols; col += spread_threads * V) {
      Pack<T, V> pack;
      pack.load(from + col);
#pragma unroll
      for (int j = 0; j < choices_at_once; ++j) {
        if (begin + j >= task.k) break;
        if (dy != nullptr) pack.store(dy + task.rows[first + begin + j] * dy_ld + col);
        if (task.bias == nullptr) continue;
        float d[V], bias[V];
        pack.get(d);
        load(bias, task.bias + task.experts[first + begin + j] * task.bias_ld + col);
#pragma unroll
        for (int i = 0; i < V; ++i) sums[j] += d[i] * bias[i];
      }
    }
#pragma unroll
    for (int j = 0; j < choices_at_once; ++j) {
      const float sum = block_sum(sums[j], partials[j]);
      if (threadIdx.x == 0 && begin + j < task.k) dweights[first + begin + j] = sum;
    }
    __syncthreads();  // the partial sums are used again
  }
}

constexpr int sum_lanes = 32, sum_slots = 8;

// A block sums 32 vectors of columns of one expert over every bias_slices-th group of 8 of its rows.
// k: 0 where dy has the sorted rows, else how many pairs share a row of it.
template <class T, int V>
__global__ void __launch_bounds__(sum_lanes* sum_slots)
    sum_expert_rows(float* partials, const T* dy, std::int64_t ld, const float* weights, const std::int32_t* offsets,
                    const std::int32_t* pairs, std::int64_t cols, int k) {
  __shared__ float shared[sum_slots][sum_lanes * V];
  const int expert = static_cast<int>(blockIdx.z);
  const std::int64_t col = (std::int64_t{blockIdx.x} * sum_lanes + threadIdx.x) * V;
  float sum[V] = {};
  if (col < cols) {
    constexpr int step = static_cast<int>(bias_slices) * sum_slots, batch = 4;
    const int end = offsets[expert + 1];
    int row = offsets[expert] + static_cast<int>(blockIdx.y) * sum_slots + static_cast<int>(threadIdx.y);
    const auto at = [&](int which) { return dy + (k == 0 ? which : pairs[which] / k) * ld + col; };
    const auto add = [&](const Pack<T, V>& pack, int which) {
      const float weight = weights != nullptr ? weights[pairs[which]] : 1.0f;
      float x[V];
      pack.get(x);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += weight * x[i];
    };
    for (; row + (batch - 1) * step < end; row += batch * step) {
      Pack<T, V> packs[batch];  // under way at the same time
#pragma unroll
      for (int b = 0; b < batch; ++b) packs[b].load(at(row + b * step));
#pragma unroll
      for (int b = 0; b < batch; ++b) add(packs[b], row + b * step);
    }
    for (; row < end; row += step) {
      Pack<T, V> pack;
      pack.load(at(row));
      add(pack, row);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) shared[threadIdx.y][i * sum_lanes + threadIdx.x] = sum[i];
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  float* to = partials + (std::int64_t{blockIdx.y} * gridDim.z + expert) * cols + col;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float total = 0;
#pragma unroll
    for (int slot = 0; slot < sum_slots; ++slot) total += shared[slot][i * sum_lanes + threadIdx.x];
    to[i] = total;
  }
}

template <class T>
CombineTask<T> task_of(View out, const Combine& combine, const ExpertOrder& order) {
  CombineTask<T> task{};
  task.out = pointer<T>(out);
  task.y = pointer<T>(combine.y);
  task.bias = pointer<T>(combine.bias);
  task.residual = pointer<T>(combine.residual);
  task.out_ld = out ? out.ld() : 0;
  task.y_ld = combine.y ? combine.y.ld() : 0;
  task.bias_ld = combine.bias ? combine.bias.ld() : 0;
  task.residual_ld = combine.residual ? combine.residual.ld() : 0;
  task.weights = pointer<float>(combine.weights);
  task.experts = pointer<std::int32_t>(combine.experts);
  task.rows = pointer<std::int32_t>(order.rows);
  task.k = static_cast<int>(order.rows.dim(1));
  return task;
}

template <class T>
bool in_vectors(const ConstView& view) {
  return view.absent() || vectors_fit(full_vector<T>, view);
}

}  // namespace

void moe_sort(Exec& exec, const ExpertOrder& order, ConstView experts, View scratch) {
  const std::int64_t pairs = order.pairs.dim(0);
  const auto count = static_cast<int>(order.offsets.dim(0) - 1), blocks = static_cast<int>(scratch.dim(0));
  INLAY_ASSERT(count <= 1024, "moe_sort: {} experts, expected at most 1024", count);
  const auto grid = static_cast<unsigned>(blocks);
  const std::size_t one = static_cast<std::size_t>(count) * sizeof(int);
  auto* counts = pointer<std::int32_t>(scratch);
  const auto* expert = pointer<std::int32_t>(experts);
  count_pairs<<<grid, 32 * sort_warps, one, stream_of(exec)>>>(counts, expert, pairs, count);
  add_counts<<<1, 1024, 0, stream_of(exec)>>>(pointer<std::int32_t>(order.offsets), counts, blocks, count);
  place_pairs<<<grid, 32 * sort_warps, sort_warps * one, stream_of(exec)>>>(
      pointer<std::int32_t>(order.pairs), pointer<std::int32_t>(order.rows), counts, expert, pairs, count);
  check_launch("moe_sort");
}

void moe_gather(Exec& exec, View to, ConstView from, const ExpertOrder& order) {
  with_activation_type(to.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, to, from), [&](auto width) {
      gather<T, width><<<static_cast<unsigned>(to.dim(0)), gather_threads, 0, stream_of(exec)>>>(
          pointer<T>(to), to.ld(), pointer<T>(from), from.ld(), pointer<std::int32_t>(order.pairs),
          static_cast<int>(order.rows.dim(1)), static_cast<int>(to.dim(1)));
    });
  });
  check_launch("moe_gather");
}

void moe_combine(Exec& exec, View out, const Combine& combine, const ExpertOrder& order) {
  with_activation_type(out.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, out, combine.y) && in_vectors<T>(combine.bias) && in_vectors<T>(combine.residual);
    with_width<T>(vectors, [&](auto width) {
      const RowGrid grid(out.dim(0), out.dim(1), width);
      combine_rows<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(task_of<T>(out, combine, order), grid);
    });
  });
  check_launch("moe_combine");
}

void moe_combine_backward(Exec& exec, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order) {
  with_activation_type(dout.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, dout) && in_vectors<T>(dy) && in_vectors<T>(combine.bias),
                  [&](auto width) {
                    spread_rows<T, width><<<static_cast<unsigned>(dout.dim(0)), spread_threads, 0, stream_of(exec)>>>(
                        pointer<T>(dy), dy ? dy.ld() : 0, pointer<float>(dweights), pointer<T>(dout), dout.ld(),
                        task_of<T>({}, combine, order), static_cast<int>(dout.dim(1)));
                  });
  });
  check_launch("moe_combine_backward");
}

void moe_bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows, View scratch) {
  const std::int64_t count = dbias.dim(0), cols = dbias.dim(1);
  with_activation_type(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, dy), [&](auto width) {
      const std::int64_t column_blocks = (cols + sum_lanes * width - 1) / (sum_lanes * width);
      const dim3 blocks(static_cast<unsigned>(column_blocks), bias_slices, static_cast<unsigned>(count));
      sum_expert_rows<T, width><<<blocks, dim3(sum_lanes, sum_slots), 0, stream_of(exec)>>>(
          pointer<float>(scratch), pointer<T>(dy), dy.ld(), pointer<float>(weights),
          pointer<std::int32_t>(order.offsets), pointer<std::int32_t>(order.pairs), cols,
          rows == RowsOf::tokens ? static_cast<int>(order.rows.dim(1)) : 0);
    });
  });
  check_launch("moe_bias_backward");
  sum_partial_rows(stream_of(exec), pointer<float>(dbias), pointer<float>(scratch), bias_slices, count * cols,
                   mode == Grad::accumulate);
}

}  // namespace inlay::ops::cuda
