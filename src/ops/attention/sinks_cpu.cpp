#include <cmath>

#include "ops/attention/sinks.h"
#include "ops/column_sums.h"

namespace inlay::ops::cpu {

namespace {

// Σ x · y over a row.
template <class T>
float dot(const T* x, const T* y, std::int64_t count) {
  f32v sum = {};
  each_vector(0, count, [&](std::int64_t i, auto part) { sum += load(x + i, part) * load(y + i, part); });
  return backend::cpu::sum(sum);
}

}  // namespace

void attention_sinks_forward(Exec&, View out, View lse, ConstView sinks) {
  const std::int64_t heads = out.dim(1), width = out.dim(2);
  with_activation(out.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows(out);
    const T* sink = sinks.as<T>();
    parallel_for(out.dim(0), row_grain(heads * width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin * heads; row < end * heads; ++row) {
        const std::int64_t head = row % heads;
        float& total = lse.as<float>()[row / heads * lse.stride(0) + head];
        const float above = total - static_cast<float>(sink[head]);  // lse − σ
        // The smaller of the two is added to the larger, so that no exponential overflows.
        total = (above > 0 ? total : static_cast<float>(sink[head])) + std::log1p(std::exp(-std::abs(above)));
        const float factor = 1.0f / (1.0f + std::exp(-above));
        each_vector(0, width,
                    [&](std::int64_t i, auto part) { store(rows[row] + i, load(rows[row] + i, part) * factor, part); });
      }
    });
  });
}

void attention_sinks_backward(Exec&, View dsinks, Grad mode, ConstView dout, ConstView out, ConstView lse,
                              ConstView sinks, View scratch) {
  const std::int64_t heads = out.dim(1), width = out.dim(2);
  with_activation(out.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T> out_rows(out), dout_rows(dout);
    const T* sink = sinks.as<T>();
    for_rows_with_sums(out.dim(0), dsinks, mode, scratch, [&](std::int64_t token, float* partial) {
      const float* total = lse.as<float>() + token * lse.stride(0);
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t row = token * heads + head;
        const float share = std::exp(static_cast<float>(sink[head]) - total[head]);
        partial[head] -= share * dot(out_rows[row], dout_rows[row], width);
      }
    });
  });
}

}  // namespace inlay::ops::cpu
