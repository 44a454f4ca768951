#include "backend/cuda/context_internal.h"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/sigmoid.cuh"
#include "ops/swiglu.h"

// One pass each: a thread moves one vector of gate and the same of up. Where tensors share memory, every element is
// read by the thread that writes it, before it does; so no pointer here is __restrict__.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class T, int V>
__global__ void __launch_bounds__(256)
    forward(T* act, std::int64_t act_ld, const T* gate_up, std::int64_t gate_up_ld, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const T* gate = gate_up + at.row * gate_up_ld + at.col;
  float g[V], u[V], a[V];
  load(g, gate);
  load(u, gate + grid.cols);
#pragma unroll
  for (int i = 0; i < V; ++i) a[i] = g[i] * sigmoid<T>(g[i]) * u[i];
  store(act + at.row * act_ld + at.col, a);
}

struct BackwardStrides {
  std::int64_t dgate_up, act, dact, gate_up;
};

// act may be null. d silu(g) / dg = s (1 + g (1 - s)).
template <class T, int V>
__global__ void __launch_bounds__(256)
    backward(T* dgate_up, T* act, const T* dact, const T* gate_up, BackwardStrides ld, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const T* gate = gate_up + at.row * ld.gate_up + at.col;
  float g[V], u[V], d[V];
  load(g, gate);
  load(u, gate + grid.cols);
  load(d, dact + at.row * ld.dact + at.col);
  float dg[V], du[V], a[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float s = sigmoid<T>(g[i]);
    const float silu = g[i] * s;
    a[i] = silu * u[i];
    du[i] = d[i] * silu;
    dg[i] = d[i] * u[i] * (s + silu * (1.0f - s));
  }
  T* dgate = dgate_up + at.row * ld.dgate_up + at.col;
  store(dgate, dg);
  store(dgate + grid.cols, du);
  if (act != nullptr) store(act + at.row * ld.act + at.col, a);
}

}  // namespace

void swiglu_forward(Exec& exec, View act, ConstView gate_up) {
  with_activation_type(act.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, act, gate_up), [&](auto width) {
      const RowGrid grid(act.dim(0), act.dim(1), width);
      forward<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(act), act.ld(),
                                                                           pointer<T>(gate_up), gate_up.ld(), grid);
    });
  });
  check_launch("swiglu_forward");
}

void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up) {
  const BackwardStrides ld{dgate_up.ld(), act ? act.ld() : 0, dact.ld(), gate_up.ld()};
  with_activation_type(dact.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, dgate_up, dact, gate_up) && (!act || vectors_fit(full_vector<T>, act));
    with_width<T>(vectors, [&](auto width) {
      const RowGrid grid(dact.dim(0), dact.dim(1), width);
      backward<T, width><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(dgate_up), pointer<T>(act), pointer<T>(dact), pointer<T>(gate_up), ld, grid);
    });
  });
  check_launch("swiglu_backward");
}

}  // namespace inlay::ops::cuda
