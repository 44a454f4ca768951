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

// What the sigmoid is taken of, and its derivative.
template <Gate kind>
__device__ __forceinline__ float exponent(float x) {
  return kind == Gate::silu ? x : x * (gelu_linear + gelu_cubic * x * x);
}
template <Gate kind>
__device__ __forceinline__ float exponent_slope(float x) {
  return kind == Gate::silu ? 1.0f : gelu_linear + 3.0f * gelu_cubic * x * x;
}

template <class T, int V, Gate kind>
__global__ void __launch_bounds__(256)
    forward(T* act, std::int64_t act_ld, const T* gate_up, std::int64_t gate_up_ld, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const T* gate = gate_up + at.row * gate_up_ld + at.col;
  float g[V], u[V], a[V];
  load(g, gate);
  load(u, gate + grid.cols);
#pragma unroll
  for (int i = 0; i < V; ++i) a[i] = g[i] * sigmoid<T>(exponent<kind>(g[i])) * u[i];
  store(act + at.row * act_ld + at.col, a);
}

struct BackwardStrides {
  std::int64_t dgate_up, act, dact, gate_up;
};

// act may be null. d (g s) / dg = s (1 + g (1 - s) e'(g)) with s = sigmoid(e(g)).
template <class T, int V, Gate kind>
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
    const float s = sigmoid<T>(exponent<kind>(g[i]));
    const float opened = g[i] * s;
    a[i] = opened * u[i];
    du[i] = d[i] * opened;
    dg[i] = d[i] * u[i] * (s + opened * (1.0f - s) * exponent_slope<kind>(g[i]));
  }
  T* dgate = dgate_up + at.row * ld.dgate_up + at.col;
  store(dgate, dg);
  store(dgate + grid.cols, du);
  if (act != nullptr) store(act + at.row * ld.act + at.col, a);
}

// Calls body with the activation's type and the gate as constants.
template <class Body>
void with_types(DType dtype, Gate gate, const Body& body) {
  with_activation_type(dtype, [&](auto type) {
    if (gate == Gate::silu) return body(type, std::integral_constant<Gate, Gate::silu>{});
    body(type, std::integral_constant<Gate, Gate::gelu_tanh>{});
  });
}

}  // namespace

void swiglu_forward(Exec& exec, View act, ConstView gate_up, Gate gate) {
  with_types(act.dtype(), gate, [&](auto type, auto kind) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, act, gate_up), [&](auto width) {
      const RowGrid grid(act.dim(0), act.dim(1), width);
      forward<T, width, kind><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(act), act.ld(), pointer<T>(gate_up), gate_up.ld(), grid);
    });
  });
  check_launch("swiglu_forward");
}

void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate) {
  const BackwardStrides ld{dgate_up.ld(), act ? act.ld() : 0, dact.ld(), gate_up.ld()};
  with_types(dact.dtype(), gate, [&](auto type, auto kind) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, dgate_up, dact, gate_up) && (!act || vectors_fit(full_vector<T>, act));
    with_width<T>(vectors, [&](auto width) {
      const RowGrid grid(dact.dim(0), dact.dim(1), width);
      backward<T, width, kind><<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(
          pointer<T>(dgate_up), pointer<T>(act), pointer<T>(dact), pointer<T>(gate_up), ld, grid);
    });
  });
  check_launch("swiglu_backward");
}

}  // namespace inlay::ops::cuda
