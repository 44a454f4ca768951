#include "backend/cuda/context_internal.h"
#include "ops/flat_vectors.cuh"
#include "ops/muon.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class Moment, int V>
__global__ void __launch_bounds__(256)
    momentum_of(float* grad, Moment* m, const float* grad_scale, float momentum, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  Pack<Moment, V> m_pack;
  Pack<float, V> grad_pack;
  m_pack.load(m + at.col);
  grad_pack.load(grad + at.col);
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
  float mean[V], g[V];
  m_pack.get(mean);
  grad_pack.get(g);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    g[i] *= scale;
    mean[i] += (g[i] - mean[i]) * (1.0f - momentum);
    g[i] += (mean[i] - g[i]) * momentum;
  }
  store(m + at.col, mean);
  store(grad + at.col, g);
}

template <int V>
__global__ void __launch_bounds__(256)
    divide_by_norm(__nv_bfloat16* to, const float* from, const double* square_sum, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  Pack<float, V> pack;
  pack.load(from + at.col);
  const float inverse = 1.0f / fmaxf(static_cast<float>(sqrt(*square_sum)), 1e-7f);
  float x[V];
  pack.get(x);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] *= inverse;
  store(to + at.col, x);
}

}  // namespace

void muon_momentum(Exec& exec, View grad, View m, ConstView grad_scale, float momentum) {
  with_activation_type(m.dtype(), [&](auto type) {
    using Moment = decltype(type);
    with_vectors(
        [&](auto width) {
          const RowGrid grid(1, grad.size(), width);
          momentum_of<Moment, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
              pointer<float>(grad), pointer<Moment>(m), pointer<float>(grad_scale), momentum, grid);
        },
        grad, m);
  });
  check_launch("muon_momentum");
}

void normalise(Exec& exec, View to, ConstView from, ConstView square_sum) {
  with_vectors(
      [&](auto width) {
        const RowGrid grid(1, from.size(), width);
        divide_by_norm<width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
            pointer<__nv_bfloat16>(to), pointer<float>(from), pointer<double>(square_sum), grid);
      },
      to, from);
  check_launch("normalise");
}

}  // namespace inlay::ops::cuda
