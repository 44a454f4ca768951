#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "backend/grouped_matmul.h"

// What the kernels of grouped_matmul share: which group's tile a block works on, found on the device.
namespace inlay::backend::cuda {

// The matrices of the groups, as they travel in a kernel's parameters.
template <class T>
struct GroupPointers {
  T* data[most_groups];
};

template <class T, class AnyView>
GroupPointers<T> group_pointers(std::span<const AnyView> views) {
  GroupPointers<T> result{};
  for (std::size_t g = 0; g < views.size(); ++g) result.data[g] = static_cast<T*>(views[g].data());
  return result;
}

// All matrices of the groups have the same row stride; those that are absent have none.
template <class AnyView>
std::int64_t common_ld(std::span<const AnyView> views) {
  std::int64_t ld = 0;
  for (const AnyView& view : views) {
    if (view.absent()) continue;
    INLAY_ASSERT(ld == 0 || view.ld() == ld, "grouped_matmul: matrices with rows {} and {} apart", ld, view.ld());
    ld = view.ld();
  }
  return ld;
}

struct GroupTile {
  int group = -1;          // none: there are more blocks than tiles
  int first = 0, end = 0;  // rows of the tile, and the end of the group
};

// The tile-th tile of `rows` rows when every group is cut into its own. There are at most S / rows + G of them.
__device__ inline GroupTile find_group_tile(const std::int32_t* offsets, int groups, int tile, int rows) {
  for (int g = 0; g < groups; ++g) {
    const int begin = offsets[g], end = offsets[g + 1];
    const int tiles = (end - begin + rows - 1) / rows;
    if (tile < tiles) return {g, begin + tile * rows, end};
    tile -= tiles;
  }
  return {};
}

}  // namespace inlay::backend::cuda
