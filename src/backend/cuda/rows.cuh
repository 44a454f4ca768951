#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/view.h"

// How elementwise kernels lie over tensors of up to three axes whose rows may be strided: a thread moves one vector, a
// block several rows of short tensors or a part of a long row.
namespace inlay::backend::cuda {

// Where the rows of a view begin: rows are numbered over all leading axes.
struct RowStrides {
  std::int64_t outer = 0, inner = 0;
  std::uint32_t inner_count = 1;

  template <class AnyView>
  explicit RowStrides(const AnyView& view) {
    INLAY_ASSERT(view.rank() <= 3, "a kernel over rows wants at most three axes, got {}", view.shape().str());
    if (view.rank() == 3) {
      outer = view.stride(0), inner = view.stride(1), inner_count = static_cast<std::uint32_t>(view.dim(1));
    } else if (view.rank() == 2) {
      outer = view.stride(0);
    }
  }

  __device__ __forceinline__ std::int64_t operator()(std::uint32_t row) const {
    if (inner_count == 1) return outer * row;
    const std::uint32_t token = row / inner_count;
    return outer * token + inner * (row - token * inner_count);
  }
};

// The view as one row where it is contiguous: then vectors may run across what were rows.
template <class AnyView>
AnyView flat(const AnyView& view) {
  return view.contiguous() ? view.reshape({view.size()}) : view;
}

struct RowGrid {
  dim3 blocks, threads;
  std::uint32_t rows = 0, column_blocks = 1;
  std::int64_t cols = 0;  // elements

  RowGrid(std::int64_t row_count, std::int64_t col_count, int width) : cols(col_count) {
    constexpr std::int64_t block = 256;
    const std::int64_t vectors = (col_count + width - 1) / width;
    const std::int64_t columns = (vectors + block - 1) / block;
    const std::int64_t across = threads_across((vectors + columns - 1) / columns);
    const std::int64_t down = block / across;
    const std::int64_t total = columns * ((row_count + down - 1) / down);
    INLAY_ASSERT(row_count < (std::int64_t{1} << 31) && total < (std::int64_t{1} << 31),
                 "a kernel over {} rows of {} is too large", row_count, col_count);
    rows = static_cast<std::uint32_t>(row_count);
    column_blocks = static_cast<std::uint32_t>(columns);
    blocks = dim3(static_cast<unsigned>(total));
    threads = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
  }

 private:
  // Whole warps for long rows, so that few threads have nothing to do; a share of a warp for short ones.
  static std::int64_t threads_across(std::int64_t vectors) {
    if (vectors > 32) return (vectors + 31) / 32 * 32;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(vectors, 1))));
  }
};

// This thread's vector: its row, its first column, and whether it exists.
struct RowPlace {
  std::uint32_t row;
  std::int64_t col;
  bool inside;
};

template <int V>
__device__ __forceinline__ RowPlace place_in(std::uint32_t rows, std::int64_t cols, std::uint32_t column_blocks) {
  const std::uint32_t row_block = blockIdx.x / column_blocks;
  const std::uint32_t column_block = blockIdx.x - row_block * column_blocks;
  RowPlace place;
  place.row = row_block * blockDim.y + threadIdx.y;
  place.col = (static_cast<std::int64_t>(column_block) * blockDim.x + threadIdx.x) * V;
  place.inside = place.row < rows && place.col < cols;
  return place;
}

}  // namespace inlay::backend::cuda
