#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/adamw.h"
#include "ops/flat_vectors.cuh"
#include "ops/master.cuh"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

// The blocks of one launch over up to N tensors, as they travel in a kernel's parameters: first[t] is tensor t's first
// one, and where there is no tensor, the number of all.
template <int N>
struct BlockTable {
  static_assert((N & (N - 1)) == 0);
  std::uint32_t first[N + 1];

  // Of tensors that have so many blocks each.
  template <class Count>
  BlockTable(std::size_t tensors, const Count& count) {
    std::int64_t next = 0;
    for (std::size_t t = 0; t <= N; ++t) {
      first[t] = static_cast<std::uint32_t>(next);
      if (t < tensors) next += count(t);
      INLAY_ASSERT(next < std::int64_t{1} << 31, "a kernel over {} tensors is too large", tensors);
    }
  }
  unsigned all() const { return first[N]; }

  // This block's tensor; all of its threads take the same way.
  __device__ __forceinline__ unsigned tensor() const {
    unsigned t = 0;
#pragma unroll
    for (unsigned half = N / 2; half > 0; half /= 2) t += first[t + half] <= blockIdx.x ? half : 0;
    return t;
  }
};

template <class Value, class Moment, class Gradient>
struct Tensors {
  Value* value[most_steps];
  std::int16_t* low[most_steps];
  Moment *m[most_steps], *v[most_steps];
  const Gradient* grad[most_steps];
  std::int64_t size[most_steps];
  BlockTable<most_steps> blocks;
  float decay[most_steps];  // in the place of the factors'
};

// A thread has one vector. Five blocks at once on a multiprocessor hide what each waits for.
template <class Value, class Moment, class Gradient, int V>
__global__ void __launch_bounds__(256, 5)
    step(const __grid_constant__ Tensors<Value, Moment, Gradient> tensors, const float* grad_scale, AdamWFactors f) {
  const unsigned t = tensors.blocks.tensor();
  const std::int64_t at = (std::int64_t{blockIdx.x - tensors.blocks.first[t]} * 256 + threadIdx.x) * V;
  if (at >= tensors.size[t]) return;
  Value* value = tensors.value[t] + at;
  std::int16_t* low = tensors.low[t] + at;
  Moment *m = tensors.m[t] + at, *v = tensors.v[t] + at;
  const float decay = tensors.decay[t];
  constexpr bool halves = std::is_same_v<Value, __nv_bfloat16>;
  // All loads first: they are what the time goes into.
  Pack<Value, V> value_pack;
  Shorts<V> low_pack;
  Pack<Moment, V> m_pack, v_pack;
  Pack<Gradient, V> grad_pack;
  value_pack.load(value);
  if constexpr (halves) low_pack.load(low);
  m_pack.load(m);
  v_pack.load(v);
  grad_pack.load(tensors.grad[t] + at);
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;

  float p[V], mean[V], square[V], g[V];
  m_pack.get(mean);
  v_pack.get(square);
  grad_pack.get(g);
  if constexpr (halves) {
    join(p, value_pack, low_pack);
  } else {
    value_pack.get(p);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    mean[i] += (g[i] - mean[i]) * f.m_rate;
    square[i] = square[i] * f.beta2 + g[i] * g[i] * f.v_rate;
    const float denominator = sqrtf(square[i]) / f.v_root + f.eps;
    // Fused by name: left to itself the assembler does it in some kernels and not in others.
    p[i] = __fmaf_rn(p[i], decay, -(mean[i] * f.step_size / denominator));
  }
  store(m, mean);
  store(v, square);
  if constexpr (halves) {
    split(p, value_pack, low_pack);
    value_pack.store(value);
    low_pack.store(low);
  } else {
    store(value, p);
  }
}

// The gradient becomes what the weight changes by, decay aside.
template <class Moment, int V>
__global__ void __launch_bounds__(256)
    update(float* grad, Moment* m, Moment* v, const float* grad_scale, AdamWFactors f, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  Pack<Moment, V> m_pack, v_pack;
  Pack<float, V> grad_pack;
  m_pack.load(m + at.col);
  v_pack.load(v + at.col);
  grad_pack.load(grad + at.col);
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
  float mean[V], square[V], g[V];
  m_pack.get(mean);
  v_pack.get(square);
  grad_pack.get(g);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    mean[i] += (g[i] - mean[i]) * f.m_rate;
    square[i] = square[i] * f.beta2 + g[i] * g[i] * f.v_rate;
    g[i] = -mean[i] * f.step_size / (sqrtf(square[i]) / f.v_root + f.eps);
  }
  store(m + at.col, mean);
  store(v + at.col, square);
  store(grad + at.col, g);
}

template <class Value, int V>
__global__ void __launch_bounds__(256)
    add_change(Value* value, std::int16_t* low, const float* change, float decay, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float p[V], d[V];
  load_master(p, value + at.col, low + at.col);
  load(d, change + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) p[i] = p[i] * decay + d[i];
  store_master(value + at.col, low + at.col, p);
}

template <int V>
__global__ void __launch_bounds__(256)
    split_values(__nv_bfloat16* value, std::int16_t* low, const float* master, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float x[V];
  load(x, master + at.col);
  Shorts<V> value_pack, low_pack;
  split(x, value_pack, low_pack);
  value_pack.store(value + at.col);
  low_pack.store(low + at.col);
}

template <int V>
__global__ void __launch_bounds__(256)
    join_values(float* master, const __nv_bfloat16* value, const std::int16_t* low, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  Shorts<V> value_pack, low_pack;
  value_pack.load(value + at.col);
  low_pack.load(low + at.col);
  float x[V];
  join(x, value_pack, low_pack);
  store(master + at.col, x);
}

constexpr int sum_threads = 256;

template <class T, int V>
__device__ __forceinline__ void add_squares(double& sum, const Pack<T, V>& pack) {
  float x[V];
  pack.get(x);
#pragma unroll
  for (int i = 0; i < V; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
}

template <class T>
struct Squared {
  const T* data[most_sums];
  std::int64_t size[most_sums];
  BlockTable<most_sums> blocks;
};

// partials[block] = Σ x² over the block's vectors of its tensor, each thread in the order of the addresses, then a
// fixed tree. What is left over of the last vector goes to the first threads of the tensor's first block.
template <class T, int V>
__global__ void __launch_bounds__(sum_threads)
    square_sums(double* partials, const __grid_constant__ Squared<T> tensors) {
  __shared__ double shared[32];
  const unsigned t = tensors.blocks.tensor();
  const unsigned begin = tensors.blocks.first[t], block = blockIdx.x - begin;
  const T* x = tensors.data[t];
  const std::int64_t size = tensors.size[t];
  const std::int64_t vectors = size / V, stride = std::int64_t{tensors.blocks.first[t + 1] - begin} * sum_threads;
  double sum = 0;
  // Four loads under way before the first is used.
  constexpr int batch = 4;
  std::int64_t i = std::int64_t{block} * sum_threads + threadIdx.x;
  for (; i + (batch - 1) * stride < vectors; i += batch * stride) {
    Pack<T, V> packs[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) packs[k].load(x + (i + k * stride) * V);
#pragma unroll
    for (int k = 0; k < batch; ++k) add_squares(sum, packs[k]);
  }
  for (; i < vectors; i += stride) {
    Pack<T, V> pack;
    pack.load(x + i * V);
    add_squares(sum, pack);
  }
  if (const std::int64_t rest = vectors * V + threadIdx.x; block == 0 && rest < size) {
    Pack<T, 1> pack;
    pack.load(x + rest);
    add_squares(sum, pack);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// The sum of `count` numbers by one block, in a fixed order.
__device__ __forceinline__ double sum_all(const double* numbers, std::int64_t count) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += numbers[i];
  return block_sum(sum, shared);
}

struct Sums {
  double* sum[most_sums];
  BlockTable<most_sums> partials;
};

// A block for every tensor.
__global__ void __launch_bounds__(sum_threads) finish_sums(const double* partials, const __grid_constant__ Sums sums) {
  const unsigned begin = sums.partials.first[blockIdx.x], end = sums.partials.first[blockIdx.x + 1];
  const double total = sum_all(partials + begin, end - begin);
  if (threadIdx.x == 0) *sums.sum[blockIdx.x] = total;  // =
}

__global__ void __launch_bounds__(1024)
    finish_clip(float* norm, float* scale, const double* sums, std::int64_t count, float max_norm) {
  const double total = sum_all(sums, count);
  if (threadIdx.x != 0) return;
  const auto root = static_cast<float>(sqrt(total));
  const float factor = max_norm / (root + 1e-6f);
  *norm = root;
  *scale = max_norm <= 0.0f || factor >= 1.0f ? 1.0f : factor;  // a NaN stays one
}

}  // namespace

namespace {

bool fits_vectors(const AdamWSlot& slot) {
  const AdamWState& state = slot.state;
  const View low = state.low ? state.low : state.value;
  return vectors_fit(flat_vector, flat(state.value), flat(low), flat(state.m), flat(state.v), flat(slot.grad));
}

}  // namespace

bool steps_alike(const AdamWSlot& x, const AdamWSlot& y) {
  return x.state.value.dtype() == y.state.value.dtype() && x.state.m.dtype() == y.state.m.dtype() &&
         x.grad.dtype() == y.grad.dtype() && fits_vectors(x) == fits_vectors(y);
}

void adamw_steps(Exec& exec, std::span<const AdamWSlot* const> slots, ConstView grad_scale,
                 const AdamWFactors& factors) {
  const auto launch = [&](auto value_type, auto moment_type, auto gradient_type, auto width) {
    using Value = decltype(value_type);
    using Moment = decltype(moment_type);
    using Gradient = decltype(gradient_type);
    constexpr std::int64_t per_block = 256 * width;
    Tensors<Value, Moment, Gradient> tensors{.blocks = {slots.size(), [&](std::size_t t) {
                                                          return (slots[t]->state.value.size() + per_block - 1) /
                                                                 per_block;
                                                        }}};
    for (std::size_t t = 0; t < slots.size(); ++t) {
      const AdamWState& state = slots[t]->state;
      tensors.value[t] = pointer<Value>(state.value);
      tensors.low[t] = pointer<std::int16_t>(state.low);
      tensors.m[t] = pointer<Moment>(state.m);
      tensors.v[t] = pointer<Moment>(state.v);
      tensors.grad[t] = pointer<Gradient>(slots[t]->grad);
      tensors.size[t] = state.value.size();
      tensors.decay[t] = slots[t]->decays ? factors.decay : 1.0f;
    }
    // Older GPUs pass a kernel 4 KiB.
    static_assert(sizeof tensors + sizeof(float*) + sizeof factors <= 4096);
    step<Value, Moment, Gradient, width>
        <<<tensors.blocks.all(), 256, 0, stream_of(exec)>>>(tensors, pointer<float>(grad_scale), factors);
  };
  const AdamWSlot& first = *slots.front();
  with_activation_type(first.state.value.dtype(), [&](auto value_type) {
    with_activation_type(first.state.m.dtype(), [&](auto moment_type) {
      with_activation_type(first.grad.dtype(), [&](auto gradient_type) {
        if (fits_vectors(first)) {
          launch(value_type, moment_type, gradient_type, std::integral_constant<int, flat_vector>{});
        } else {
          launch(value_type, moment_type, gradient_type, std::integral_constant<int, 1>{});
        }
      });
    });
  });
  check_launch("adamw_steps");
}

void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors) {
  with_activation_type(m.dtype(), [&](auto type) {
    using Moment = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(1, grad.size(), width);
          update<Moment, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<float>(grad), pointer<Moment>(m), pointer<Moment>(v), pointer<float>(grad_scale), factors, grid);
        },
        grad, m, v);
  });
  check_launch("adamw_update");
}

void add_update(Exec& exec, View value, View low, ConstView change, float decay) {
  const View low_or_value = low ? low : value;  // an absent tensor must not decide the width
  with_activation_type(value.dtype(), [&](auto type) {
    using Value = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(1, value.size(), width);
          add_change<Value, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<Value>(value), pointer<std::int16_t>(low), pointer<float>(change), decay, grid);
        },
        value, low_or_value, change);
  });
  check_launch("add_update");
}

void split_master(Exec& exec, View value, View low, ConstView master) {
  with_vectors(
      [&](auto width) {
        const RowGrid grid(1, master.size(), width);
        split_values<width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
            pointer<__nv_bfloat16>(value), pointer<std::int16_t>(low), pointer<float>(master), grid);
      },
      value, low, master);
  check_launch("split_master");
}

void join_master(Exec& exec, View master, ConstView value, ConstView low) {
  with_vectors(
      [&](auto width) {
        const RowGrid grid(1, master.size(), width);
        join_values<width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
            pointer<float>(master), pointer<__nv_bfloat16>(value), pointer<std::int16_t>(low), grid);
      },
      value, low, master);
  check_launch("join_master");
}

namespace {

bool sums_in_vectors(ConstView x) { return reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0; }

}  // namespace

bool sums_alike(const SquaredTensor& x, const SquaredTensor& y) {
  return x.x.dtype() == y.x.dtype() && sums_in_vectors(x.x) == sums_in_vectors(y.x);
}

void sums_of_squares(Exec& exec, View sums, std::span<const SquaredTensor* const> tensors, View scratch) {
  const BlockTable<most_sums> blocks(tensors.size(), [&](std::size_t t) { return partial_sums(tensors[t]->x.size()); });
  Sums finish{.sum = {}, .partials = blocks};
  for (std::size_t t = 0; t < tensors.size(); ++t) finish.sum[t] = pointer<double>(sums) + tensors[t]->slot;
  const ConstView first = tensors.front()->x;
  with_activation_type(first.dtype(), [&](auto type) {
    using T = decltype(type);
    Squared<T> squared{.data = {}, .size = {}, .blocks = blocks};
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      squared.data[t] = pointer<T>(tensors[t]->x);
      squared.size[t] = tensors[t]->x.size();
    }
    with_width<T>(sums_in_vectors(first), [&](auto width) {
      square_sums<T, width><<<blocks.all(), sum_threads, 0, stream_of(exec)>>>(pointer<double>(scratch), squared);
    });
  });
  check_launch("sums_of_squares");
  finish_sums<<<static_cast<unsigned>(tensors.size()), sum_threads, 0, stream_of(exec)>>>(pointer<double>(scratch),
                                                                                          finish);
  check_launch("sums_of_squares");
}

void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm) {
  finish_clip<<<1, 1024, 0, stream_of(exec)>>>(pointer<float>(norm), pointer<float>(scale), pointer<double>(sums),
                                               sums.size(), max_norm);
  check_launch("clip_scale");
}

}  // namespace inlay::ops::cuda
