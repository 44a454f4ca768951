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

// One vector of a tensor, at these addresses.
template <class Value, class Moment, class Gradient, int V>
__device__ __forceinline__ void step_vector(Value* value, std::int16_t* low, Moment* m, Moment* v, const Gradient* grad,
                                            const float* grad_scale, const AdamWFactors& f) {
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
  grad_pack.load(grad);
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
    p[i] = p[i] * f.decay - mean[i] * f.step_size / denominator;
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

template <class Value, class Moment, class Gradient, int V>
__global__ void __launch_bounds__(256) step(Value* value, std::int16_t* low, Moment* m, Moment* v, const Gradient* grad,
                                            const float* grad_scale, AdamWFactors f, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  step_vector<Value, Moment, Gradient, V>(value + at.col, low + at.col, m + at.col, v + at.col, grad + at.col,
                                          grad_scale, f);
}

// Many tensors, as they travel in a kernel's parameters.
template <class Value, class Moment>
struct Tensors {
  Value* value[most_together];
  std::int16_t* low[most_together];
  Moment *m[most_together], *v[most_together];
  const float* grad[most_together];
  std::int64_t size[most_together];
};

// A row of blocks for every tensor.
template <class Value, class Moment, int V>
__global__ void __launch_bounds__(256)
    step_many(const __grid_constant__ Tensors<Value, Moment> tensors, const float* grad_scale, AdamWFactors f) {
  const unsigned t = blockIdx.y;
  const std::int64_t at = (std::int64_t{blockIdx.x} * 256 + threadIdx.x) * V;
  if (at >= tensors.size[t]) return;
  std::int16_t* low = tensors.low[t] == nullptr ? nullptr : tensors.low[t] + at;
  step_vector<Value, Moment, float, V>(tensors.value[t] + at, low, tensors.m[t] + at, tensors.v[t] + at,
                                       tensors.grad[t] + at, grad_scale, f);
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

// partials[block] = Σ x² over the block's vectors, each thread in the order of the addresses, then a fixed tree. What
// is left over of the last vector goes to the first threads of block 0.
template <class T, int V>
__global__ void __launch_bounds__(sum_threads) square_sums(double* partials, const T* x, std::int64_t size) {
  __shared__ double shared[32];
  const std::int64_t vectors = size / V, stride = std::int64_t{gridDim.x} * sum_threads;
  double sum = 0;
  // Four loads under way before the first is used.
  constexpr int batch = 4;
  std::int64_t i = std::int64_t{blockIdx.x} * sum_threads + threadIdx.x;
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
  if (const std::int64_t rest = vectors * V + threadIdx.x; blockIdx.x == 0 && rest < size) {
    Pack<T, 1> pack;
    pack.load(x + rest);
    add_squares(sum, pack);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

struct Gradients {
  const float* data[most_together];
  std::int64_t size[most_together], slot[most_together];
};

// A block for every tensor: each thread in the order of the addresses, then a fixed tree.
__global__ void __launch_bounds__(1024) square_sums_of_many(double* sums, const __grid_constant__ Gradients gradients) {
  __shared__ double shared[32];
  const float* x = gradients.data[blockIdx.x];
  const std::int64_t size = gradients.size[blockIdx.x];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < size; i += 1024) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) sums[gradients.slot[blockIdx.x]] = sum;  // =
}

// The sum of `count` numbers by one block of 1024, in a fixed order.
__device__ __forceinline__ double sum_all(const double* numbers, std::int64_t count) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += numbers[i];
  return block_sum(sum, shared);
}

__global__ void __launch_bounds__(1024) finish_sum(double* sum, const double* partials, int count) {
  const double total = sum_all(partials, count);
  if (threadIdx.x == 0) *sum = total;  // =
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

void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale,
                const AdamWFactors& factors) {
  const auto launch = [&](auto value_type, auto moment_type, auto gradient_type, auto width) {
    using Value = decltype(value_type);
    using Moment = decltype(moment_type);
    using Gradient = decltype(gradient_type);
    const RowGrid grid(1, state.value.size(), width);
    step<Value, Moment, Gradient, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
        pointer<Value>(state.value), pointer<std::int16_t>(state.low), pointer<Moment>(state.m),
        pointer<Moment>(state.v), pointer<Gradient>(grad), pointer<float>(grad_scale), factors, grid);
  };
  const View low = state.low ? state.low : state.value;  // an absent tensor must not decide the width
  with_activation_type(state.value.dtype(), [&](auto value_type) {
    with_activation_type(state.m.dtype(), [&](auto moment_type) {
      with_activation_type(grad.dtype(), [&](auto gradient_type) {
        with_vectors([&](auto width) { launch(value_type, moment_type, gradient_type, width); }, state.value, low,
                     state.m, state.v, grad);
      });
    });
  });
  check_launch("adamw_step");
}

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
  const AdamWSlot& first = *slots.front();
  if (slots.size() == 1 || first.grad.dtype() != DType::f32) {
    for (const AdamWSlot* slot : slots) adamw_step(exec, slot->state, slot->grad, grad_scale, factors);
    return;
  }
  const auto launch = [&](auto value_type, auto moment_type, auto width) {
    using Value = decltype(value_type);
    using Moment = decltype(moment_type);
    Tensors<Value, Moment> tensors{};
    std::int64_t most = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const AdamWState& state = slots[i]->state;
      tensors.value[i] = pointer<Value>(state.value);
      tensors.low[i] = pointer<std::int16_t>(state.low);
      tensors.m[i] = pointer<Moment>(state.m);
      tensors.v[i] = pointer<Moment>(state.v);
      tensors.grad[i] = pointer<float>(slots[i]->grad);
      tensors.size[i] = state.value.size();
      most = std::max(most, tensors.size[i]);
    }
    constexpr std::int64_t per_block = 256 * width;
    const dim3 blocks(static_cast<unsigned>((most + per_block - 1) / per_block), static_cast<unsigned>(slots.size()));
    step_many<Value, Moment, width><<<blocks, 256, 0, stream_of(exec)>>>(tensors, pointer<float>(grad_scale), factors);
  };
  with_activation_type(first.state.value.dtype(), [&](auto value_type) {
    with_activation_type(first.state.m.dtype(), [&](auto moment_type) {
      if (fits_vectors(first)) {
        launch(value_type, moment_type, std::integral_constant<int, flat_vector>{});
      } else {
        launch(value_type, moment_type, std::integral_constant<int, 1>{});
      }
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

void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x, View scratch) {
  int blocks = 0;
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0, [&](auto width) {
      constexpr std::int64_t chunk = std::int64_t{sum_threads} * width * 4;
      blocks = static_cast<int>(std::min<std::int64_t>(scratch.dim(0), (x.size() + chunk - 1) / chunk));
      square_sums<T, width><<<static_cast<unsigned>(blocks), sum_threads, 0, stream_of(exec)>>>(
          pointer<double>(scratch), pointer<T>(x), x.size());
    });
  });
  check_launch("sum_of_squares");
  finish_sum<<<1, 1024, 0, stream_of(exec)>>>(pointer<double>(sums) + slot, pointer<double>(scratch), blocks);
  check_launch("sum_of_squares");
}

void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x) {
  Gradients gradients{};
  for (std::size_t i = 0; i < x.size(); ++i) {
    gradients.data[i] = pointer<float>(x[i]);
    gradients.size[i] = x[i].size();
    gradients.slot[i] = slots[i];
  }
  square_sums_of_many<<<static_cast<unsigned>(x.size()), 1024, 0, stream_of(exec)>>>(pointer<double>(sums), gradients);
  check_launch("sums_of_squares");
}

void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm) {
  finish_clip<<<1, 1024, 0, stream_of(exec)>>>(pointer<float>(norm), pointer<float>(scale), pointer<double>(sums),
                                               sums.size(), max_norm);
  check_launch("clip_scale");
}

}  // namespace inlay::ops::cuda
