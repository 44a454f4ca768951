#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include <inlay/types.h>

namespace inlay {

// Numbers in memory that the caller owns, on the host or on a GPU. At most four dimensions; strides count elements, and
// the last dimension is contiguous. Without data a tensor is absent: no bias, no gradient wanted.
struct Tensor {
  static constexpr int max_rank = 4;

  Tensor() = default;
  // Contiguous.
  Tensor(void* memory, DType type, std::initializer_list<std::int64_t> extents) : data(memory), dtype(type) {
    for (const std::int64_t extent : extents) {
      if (rank < max_rank) shape[static_cast<std::size_t>(rank)] = extent;
      ++rank;
    }
    std::int64_t stride = 1;
    for (int axis = rank < max_rank ? rank - 1 : max_rank - 1; axis >= 0; --axis) {
      strides[static_cast<std::size_t>(axis)] = stride;
      stride *= shape[static_cast<std::size_t>(axis)];
    }
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{}, strides{};
};

}  // namespace inlay
