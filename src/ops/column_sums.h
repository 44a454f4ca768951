#pragma once

#include <cstring>

#include "backend/exec.h"
#include "ops/rows.h"

// Sums over rows (gradients of norm weights and of biases) on the host: a fixed number of contiguous blocks of rows,
// each with a partial sum of its own, then the partial sums in order. The blocks depend on the shape alone, so the
// result does not depend on the number of threads.
namespace inlay::ops::cpu {

// add_row(row, partial) for every row; afterwards total (fp32 [N]) = or += the sum of the partials. scratch is fp32
// [blocks at least, N]; empty where there is nothing to sum, and then partial is null.
template <class AddRow>
void for_rows_with_sums(std::int64_t rows, View total, backend::Grad mode, View scratch, const AddRow& add_row) {
  if (mode == backend::Grad::skip) {
    parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) add_row(row, static_cast<float*>(nullptr));
    });
    return;
  }
  const std::int64_t cols = scratch.dim(1);
  const std::int64_t blocks = std::min<std::int64_t>(scratch.dim(0), 64);
  auto* partials = scratch.as<float>();
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      float* partial = partials + block * cols;
      std::memset(partial, 0, static_cast<std::size_t>(cols) * sizeof(float));
      for (std::int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) add_row(row, partial);
    }
  });
  auto* to = total.as<float>();
  parallel_for((cols + lanes - 1) / lanes, 64, [&](std::int64_t begin, std::int64_t end) {
    each_vector(begin * lanes, std::min(end * lanes, cols), [&](std::int64_t i, auto part) {
      f32v sum = load(partials + i, part);
      for (std::int64_t block = 1; block < blocks; ++block) sum += load(partials + block * cols + i, part);
      if (mode == backend::Grad::accumulate) sum += load(to + i, part);
      store(to + i, sum, part);
    });
  });
}

}  // namespace inlay::ops::cpu
