#pragma once

#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/expert_glu.h"
#include "ops/sigmoid.cuh"

// What the kernels of the experts' activation share.
namespace inlay::ops::cuda {

using backend::cuda::load;
using backend::cuda::Pack;
using backend::cuda::pointer;
using backend::cuda::store;

// V gates and the V ups that go with them, from column `col` of the activation on.
template <Glu kind, class T, int V>
__device__ __forceinline__ void load_pairs(float (&gate)[V], float (&up)[V], const T* row, std::int64_t width,
                                           std::int64_t col) {
  if constexpr (kind == Glu::silu) {
    load(gate, row + col);
    load(up, row + width + col);
  } else if constexpr (V == 1) {  // may begin anywhere
    load(gate, row + 2 * col);
    load(up, row + 2 * col + 1);
  } else {
    Pack<T, 2 * V> pack;
    pack.load(row + 2 * col);
    float both[2 * V];
    pack.get(both);
#pragma unroll
    for (int i = 0; i < V; ++i) gate[i] = both[2 * i], up[i] = both[2 * i + 1];
  }
}

template <Glu kind, class T, int V>
__device__ __forceinline__ void store_pairs(T* row, std::int64_t width, std::int64_t col, const float (&gate)[V],
                                            const float (&up)[V]) {
  if constexpr (kind == Glu::silu) {
    store(row + col, gate);
    store(row + width + col, up);
  } else if constexpr (V == 1) {
    store(row + 2 * col, gate);
    store(row + 2 * col + 1, up);
  } else {
    float both[2 * V];
#pragma unroll
    for (int i = 0; i < V; ++i) both[2 * i] = gate[i], both[2 * i + 1] = up[i];
    store(row + 2 * col, both);
  }
}

// The activation and its derivatives by gate and up.
struct Activation {
  float value, by_gate, by_up;
};

template <class T, Glu kind>
__device__ __forceinline__ Activation activate(float gate, float up) {
  if constexpr (kind == Glu::silu) {
    const float s = sigmoid<T>(gate), silu = gate * s;
    return {silu * up, up * (s + silu * (1.0f - s)), silu};
  } else {
    const float g = gate > glu_limit ? glu_limit : gate;  // written so that a NaN comes through
    const float u = up > glu_limit ? glu_limit : up < -glu_limit ? -glu_limit : up;
    const float s = sigmoid<T>(glu_slope * g), gs = g * s;
    return {(u + 1.0f) * gs, gate > glu_limit ? 0.0f : (u + 1.0f) * (s + glu_slope * gs * (1.0f - s)),
            fabsf(up) > glu_limit ? 0.0f : gs};
  }
}

template <class T>
struct Biases {
  const T* data;  // or null
  std::int64_t ld;
  const std::int32_t *experts, *pairs;

  // The biases of the row's expert, or null.
  __device__ __forceinline__ const T* of_row(std::int64_t row) const {
    return data == nullptr ? nullptr : data + experts[pairs[row]] * ld;
  }
};

template <Glu kind, class T, int V>
__device__ __forceinline__ void add_biases(float (&gate)[V], float (&up)[V], const T* biases, std::int64_t width,
                                           std::int64_t col) {
  if (biases == nullptr) return;
  float g[V], u[V];
  load_pairs<kind>(g, u, biases, width, col);
#pragma unroll
  for (int i = 0; i < V; ++i) gate[i] += g[i], up[i] += u[i];
}

template <class T>
Biases<T> biases_of(const ExpertRows& rows) {
  return {pointer<T>(rows.bias), rows.bias ? rows.bias.ld() : 0, pointer<std::int32_t>(rows.experts),
          pointer<std::int32_t>(rows.order.pairs)};
}

}  // namespace inlay::ops::cuda
