#include "ops/factors.h"

#include <cmath>

#include "ops/master_cpu.h"

namespace inlay::ops::cpu {

namespace {

const std::int16_t* low_of(const Master& master) { return master.low ? master.low.as<std::int16_t>() : nullptr; }

// body(row) for every row, shared among threads.
template <class Body>
void for_rows(std::int64_t rows, std::int64_t cols, const Body& body) {
  parallel_for(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

float sum_of(f32v vector) {
  float total = 0;
  for (int i = 0; i < lanes; ++i) total += vector[i];
  return total;
}

}  // namespace

void add_offset(Exec&, View out, ConstView base, const Master& offset) {
  const std::int16_t* low = low_of(offset);
  with_activation(base.dtype(), [&](auto type) {
    with_activation(offset.value.dtype(), [&](auto offset_type) {
      auto* to = out.as<decltype(type)>();
      const auto* from = base.as<decltype(type)>();
      const auto* value = offset.value.as<decltype(offset_type)>();
      parallel_vectors(out.size(), [&](std::int64_t i, auto part) {
        store(to + i, load(from + i, part) + load_master(value + i, low + i, part), part);
      });
    });
  });
}

void row_dot(Exec&, View out, ConstView a, ConstView b) {
  float* to = out.as<float>();
  with_activation(a.dtype(), [&](auto a_type) {
    with_activation(b.dtype(), [&](auto b_type) {
      const Rows<const decltype(a_type)> a_rows(a);
      const Rows<const decltype(b_type)> b_rows(b);
      for_rows(a.rows(), a.cols(), [&](std::int64_t row) {
        const auto* left = a_rows[row];
        const auto* right = b_rows[row];
        f32v sum{};
        each_vector(0, a.cols(),
                    [&](std::int64_t i, auto part) { sum += load(left + i, part) * load(right + i, part); });
        to[row] = sum_of(sum);  // =
      });
    });
  });
}

void change_rows(Exec&, View scaled, View change, const FactorRows& rows) {
  const std::int16_t* low = low_of(rows.offset);
  const float *scale = rows.scale.as<float>(), *scale_offset = rows.scale_offset.as<float>();
  const std::int64_t cols = rows.base.cols();
  with_activation(rows.base.dtype(), [&](auto type) {
    with_activation(rows.offset.value.dtype(), [&](auto offset_type) {
      using T = decltype(type);
      const T* base = rows.base.as<T>();
      const auto* value = rows.offset.value.as<decltype(offset_type)>();
      T *to_scaled = scaled.as<T>(), *to_change = change.as<T>();
      for_rows(rows.base.rows(), cols, [&](std::int64_t row) {
        const float moved = scale_offset[row], s = scale[row] + moved;
        each_vector(row * cols, (row + 1) * cols, [&](std::int64_t i, auto part) {
          const f32v start = load(base + i, part), offset = load_master(value + i, low + i, part);
          store(to_scaled + i, (start + offset) * s, part);
          store(to_change + i, offset * s + start * moved, part);
        });
      });
    });
  });
}

}  // namespace inlay::ops::cpu
