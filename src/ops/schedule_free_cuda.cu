#include "backend/cuda/context_internal.h"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/flat_vectors.cuh"
#include "ops/master.cuh"
#include "ops/schedule_free.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class Value, int V>
__global__ void __launch_bounds__(256)
    begin(Value* value, std::int16_t* low, float* z, float ahead, bool first, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float x[V], next[V];
  load_master(x, value + at.col, low + at.col);
  if (first) return store(z + at.col, x);
  load(next, z + at.col);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = x[i] + (next[i] - x[i]) * ahead;
  store_master(value + at.col, low + at.col, x);
}

template <class Value, int V>
__global__ void __launch_bounds__(256) step(Value* value, std::int16_t* low, float* z, float* v, const float* grad,
                                            const float* grad_scale, ScheduleFreeFactors f, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  float y[V], old[V], square[V], g[V];
  load_master(y, value + at.col, low + at.col);
  load(old, z + at.col);
  load(square, v + at.col);
  load(g, grad + at.col);
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    square[i] = square[i] * f.beta2 + g[i] * g[i] * f.v_rate;
    const float direction = g[i] / (sqrtf(square[i]) / f.v_root + f.eps) + y[i] * f.decay;
    const float x = y[i] + (old[i] - y[i]) * f.back;
    old[i] -= direction * f.lr;
    y[i] = x + (old[i] - x) * f.share;
  }
  store(v + at.col, square);
  store(z + at.col, old);
  store_master(value + at.col, low + at.col, y);
}

}  // namespace

void schedule_free_begin(Exec& exec, const ScheduleFreeState& state, float ahead, bool first) {
  const View low = state.low ? state.low : state.value;  // an absent tensor must not decide the width
  with_activation_type(state.value.dtype(), [&](auto type) {
    using Value = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(1, state.value.size(), width);
          begin<Value, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<Value>(state.value), pointer<std::int16_t>(state.low), pointer<float>(state.z), ahead, first,
              grid);
        },
        state.value, low, state.z);
  });
  check_launch("schedule_free_begin");
}

void schedule_free_step(Exec& exec, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeFactors& factors) {
  const View low = state.low ? state.low : state.value;
  with_activation_type(state.value.dtype(), [&](auto type) {
    using Value = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(1, state.value.size(), width);
          step<Value, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<Value>(state.value), pointer<std::int16_t>(state.low), pointer<float>(state.z),
              pointer<float>(state.v), pointer<float>(grad), pointer<float>(grad_scale), factors, grid);
        },
        state.value, low, state.z, state.v, grad);
  });
  check_launch("schedule_free_step");
}

}  // namespace inlay::ops::cuda
