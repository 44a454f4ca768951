#include "ops/dropout.h"
#include "ops/philox_lanes.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

constexpr std::int64_t stretch = 4 * lanes;  // numbers that a vector of blocks serves

// What each number of stretch `index` is multiplied by: the scale, or nothing.
void factors_of(float (&factors)[stretch], std::int64_t index, const Dropout& which) {
  const auto words = philox_words(which.seed, static_cast<std::uint64_t>(index * lanes), which.site);
  const f32v scale = splat(which.scale());
  for (std::size_t j = 0; j < words.size(); ++j) {
    const f32v chosen = words[j] < which.threshold() ? f32v{} : scale;
    for (std::int64_t i = 0; i < lanes; ++i) factors[4 * i + static_cast<std::int64_t>(j)] = chosen[i];
  }
}

template <class T, bool accumulate>
void drop_row(T* y, const T* x, std::int64_t first, std::int64_t cols, const Dropout& which) {
  float factors[stretch];
  for (std::int64_t col = 0; col < cols;) {
    const std::int64_t place = first + col, offset = place % stretch;
    const std::int64_t count = std::min(stretch - offset, cols - col);
    factors_of(factors, place / stretch, which);
    each_vector(col, col + count, [&](std::int64_t i, auto part) {
      const f32v factor = load(factors + offset + (i - col), part);
      const f32v before = accumulate ? load(y + i, part) : f32v{};
      const f32v kept =
          accumulate ? backend::cpu::fused(load(x + i, part), factor, before) : load(x + i, part) * factor;
      store(y + i, factor == 0.0f ? before : kept, part);  // whatever x is, it is dropped
    });
    col += count;
  }
}

}  // namespace

void dropout(Exec&, View y, Grad mode, ConstView x, const Dropout& which) {
  with_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> y_rows(y);
    const Rows<const T> x_rows(x);
    const std::int32_t* order = which.rows.absent() ? nullptr : which.rows.as<std::int32_t>();
    parallel_for(x.rows(), row_grain(x.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t first = (which.first_row + (order == nullptr ? row : order[row])) * x.cols();
        if (mode == Grad::accumulate) {
          drop_row<T, true>(y_rows[row], x_rows[row], first, x.cols(), which);
        } else {
          drop_row<T, false>(y_rows[row], x_rows[row], first, x.cols(), which);
        }
      }
    });
  });
}

}  // namespace inlay::ops::cpu
