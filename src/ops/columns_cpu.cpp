#include "ops/columns.h"

#include <cmath>

#include "ops/column_sums.h"

namespace inlay::ops::cpu {

void column_dot(Exec&, View out, Grad mode, ConstView a, ConstView b, View scratch) {
  with_activation(a.dtype(), [&](auto a_type) {
    with_activation(b.dtype(), [&](auto b_type) {
      const Rows<const decltype(a_type)> a_rows(a);
      const Rows<const decltype(b_type)> b_rows(b);
      for_rows_with_sums(a.rows(), out, mode, scratch, [&](std::int64_t row, float* partial) {
        const auto* left = a_rows[row];
        const auto* right = b_rows[row];
        each_vector(0, a.cols(), [&](std::int64_t i, auto part) {
          store(partial + i, load(partial + i, part) + load(left + i, part) * load(right + i, part), part);  // +=
        });
      });
    });
  });
}

void scale_columns(Exec&, View y, ConstView x, ConstView factors) {
  const float* factor = factors.as<float>();
  with_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> y_rows(y);
    const Rows<const T> x_rows(x);
    parallel_for(x.rows(), row_grain(x.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* to = y_rows[row];
        const T* from = x_rows[row];
        each_vector(0, x.cols(), [&](std::int64_t i, auto part) {
          store(to + i, load(from + i, part) * load(factor + i, part), part);
        });
      }
    });
  });
}

void square_roots(Exec&, View x) {
  auto* values = x.as<float>();
  for (std::int64_t i = 0; i < x.size(); ++i) values[i] = std::sqrt(values[i]);
}

void quotients(Exec&, View out, ConstView a, ConstView b) {
  auto* to = out.as<float>();
  const auto *above = a.as<float>(), *below = b.as<float>();
  for (std::int64_t i = 0; i < out.size(); ++i) to[i] = below[i] == 0 ? 0.0f : above[i] / below[i];
}

}  // namespace inlay::ops::cpu
