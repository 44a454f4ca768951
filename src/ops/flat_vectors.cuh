#pragma once

#include <type_traits>

#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"

// Kernels over whole tensors, which do not care where rows end.
namespace inlay::ops::cuda {

inline constexpr int flat_vector = 8;  // 16 bytes of bf16 weights and of their low halves, 32 of each fp32 tensor

// Calls body with the width that the flat tensors allow.
template <class Body, class... Views>
void with_vectors(const Body& body, const Views&... views) {
  if (backend::cuda::vectors_fit(flat_vector, backend::cuda::flat(views)...)) {
    body(std::integral_constant<int, flat_vector>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace inlay::ops::cuda
