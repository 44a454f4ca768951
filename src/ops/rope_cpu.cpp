#include <vector>

#include "ops/rope.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

template <class T>
void rotate(View x, ConstView positions, ConstView table, float sign) {
  const std::int64_t heads = x.dim(1), half = table.dim(1);
  const auto* position = positions.as<std::int32_t>();
  parallel_for(x.dim(0), row_grain(heads * x.dim(2)), [&](std::int64_t begin, std::int64_t end) {
    // Cosines and sines of a token, apart from each other; all its heads use them.
    std::vector<float> cosines(static_cast<std::size_t>(half)), sines(static_cast<std::size_t>(half));
    for (std::int64_t token = begin; token < end; ++token) {
      const float* pairs = table.as<float>() + position[token] * half * 2;
      for (std::int64_t i = 0; i < half; ++i) {
        cosines[static_cast<std::size_t>(i)] = pairs[2 * i];
        sines[static_cast<std::size_t>(i)] = sign * pairs[2 * i + 1];
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        T* first = x.as<T>() + token * x.stride(0) + head * x.stride(1);
        T* second = first + half;
        each_vector(0, half, [&](std::int64_t i, auto part) {
          const f32v a = load(first + i, part), b = load(second + i, part);
          const f32v c = load(cosines.data() + i, part), s = load(sines.data() + i, part);
          store(first + i, a * c - b * s, part);
          store(second + i, b * c + a * s, part);
        });
      }
    }
  });
}

template <class T>
void rotate_neighbours(View x, ConstView positions, ConstView table, float sign) {
  const std::int64_t heads = x.dim(1), half = table.dim(1);
  const auto* position = positions.as<std::int32_t>();
  parallel_for(x.dim(0), row_grain(heads * x.dim(2)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float* turn = table.as<float>() + position[token] * half * 2;
      for (std::int64_t head = 0; head < heads; ++head) {
        T* pair = x.as<T>() + token * x.stride(0) + head * x.stride(1);
        for (std::int64_t i = 0; i < 2 * half; i += 2) {
          const auto a = static_cast<float>(pair[i]), b = static_cast<float>(pair[i + 1]);
          const float c = turn[i], s = sign * turn[i + 1];
          pair[i] = T(a * c - b * s);
          pair[i + 1] = T(b * c + a * s);
        }
      }
    }
  });
}

}  // namespace

void rope(Exec&, View x, ConstView positions, ConstView table, Rotation rotation, RopePairs pairs) {
  const float sign = rotation == Rotation::forward ? 1.0f : -1.0f;
  if (pairs == RopePairs::neighbours) {
    return with_activation(x.dtype(), [&](auto type) { rotate_neighbours<decltype(type)>(x, positions, table, sign); });
  }
  with_activation(x.dtype(), [&](auto type) { rotate<decltype(type)>(x, positions, table, sign); });
}

}  // namespace inlay::ops::cpu
