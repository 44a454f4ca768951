#include <algorithm>
#include <cstring>

#include "ops/moe_permute.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

// What the row kernels read of the order.
struct Index {
  explicit Index(const ExpertOrder& order)
      : offsets(order.offsets.as<std::int32_t>()),
        pairs(order.pairs.as<std::int32_t>()),
        rows(order.rows.as<std::int32_t>()),
        k(order.rows.dim(1)) {}
  const std::int32_t *offsets, *pairs, *rows;
  std::int64_t k;
};

template <class T>
f32v dot_part(const T* a, const T* b, std::int64_t i, auto part) {
  return load(a + i, part) * load(b + i, part);
}

}  // namespace

void moe_sort(Exec&, const ExpertOrder& order, ConstView experts) {
  const std::int64_t count = order.offsets.dim(0) - 1, pairs = order.pairs.dim(0);
  const auto* expert = experts.as<std::int32_t>();
  auto *offsets = order.offsets.as<std::int32_t>(), *rows = order.rows.as<std::int32_t>();
  std::fill_n(offsets, count + 1, 0);
  for (std::int64_t i = 0; i < pairs; ++i) ++offsets[expert[i] + 1];
  for (std::int64_t e = 0; e < count; ++e) offsets[e + 1] += offsets[e];
  // offsets[e] serves as the next free row of e and ends up as offsets[e + 1]; it is moved back afterwards.
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t row = offsets[expert[i]]++;
    rows[i] = row;
    order.pairs.as<std::int32_t>()[row] = static_cast<std::int32_t>(i);
  }
  std::move_backward(offsets, offsets + count, offsets + count + 1);
  offsets[0] = 0;
}

void moe_gather(Exec&, View to, ConstView from, const ExpertOrder& order) {
  const Index index(order);
  const std::size_t bytes = static_cast<std::size_t>(to.cols()) * size_of(to.dtype());
  with_activation(to.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> to_rows(to);
    const Rows<const T> from_rows(from);
    parallel_for(to.rows(), row_grain(to.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        std::memcpy(static_cast<void*>(to_rows[row]), from_rows[index.pairs[row] / index.k], bytes);
      }
    });
  });
}

void moe_combine(Exec&, View out, const Combine& combine, const ExpertOrder& order) {
  const Index index(order);
  with_activation(out.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> out_rows(out);
    const Rows<const T> y_rows(combine.y), bias_rows(combine.bias ? combine.bias : combine.y);
    const Rows<const T> residual_rows(combine.residual ? combine.residual : ConstView(out));
    const float* weights = combine.weights ? combine.weights.as<float>() : nullptr;
    const std::int32_t* experts = combine.bias ? combine.experts.as<std::int32_t>() : nullptr;
    parallel_for(out.rows(), row_grain(out.cols() * index.k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        each_vector(0, out.cols(), [&](std::int64_t i, auto part) {
          f32v sum = combine.residual ? load(residual_rows[t] + i, part) : f32v{};
          for (std::int64_t pair = t * index.k; pair < (t + 1) * index.k; ++pair) {
            f32v y = load(y_rows[index.rows[pair]] + i, part);
            if (experts != nullptr) y += load(bias_rows[experts[pair]] + i, part);
            sum += weights != nullptr ? y * weights[pair] : y;
          }
          store(out_rows[t] + i, sum, part);
        });
      }
    });
  });
}

void moe_combine_backward(Exec&, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order) {
  const Index index(order);
  const std::size_t bytes = static_cast<std::size_t>(dout.cols()) * size_of(dout.dtype());
  with_activation(dout.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> dy_rows(dy);
    const Rows<const T> dout_rows(dout), bias_rows(combine.bias ? combine.bias : dout);
    const std::int32_t* experts = combine.bias ? combine.experts.as<std::int32_t>() : nullptr;
    parallel_for(dout.rows(), row_grain(dout.cols() * index.k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t pair = begin * index.k; pair < end * index.k; ++pair) {
        const T* from = dout_rows[pair / index.k];
        std::memcpy(static_cast<void*>(dy_rows[index.rows[pair]]), from, bytes);
        f32v sum = {};
        if (experts != nullptr) {
          const T* bias = bias_rows[experts[pair]];
          each_vector(0, dout.cols(), [&](std::int64_t i, auto part) { sum += dot_part(from, bias, i, part); });
        }
        dweights.as<float>()[pair] = backend::cpu::sum(sum);
      }
    });
  });
}

void moe_bias_backward(Exec&, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows) {
  const Index index(order);
  with_activation(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T> dy_rows(dy);
    const Rows<float> to_rows(dbias);
    const float* weight = weights ? weights.as<float>() : nullptr;
    // A task is one expert's stretch of columns, so that few experts with many rows are shared out as well.
    constexpr std::int64_t stretch = 256;
    const std::int64_t stretches = (dy.cols() + stretch - 1) / stretch;
    parallel_for(dbias.rows() * stretches, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t e = task / stretches, first = task % stretches * stretch;
        const std::int64_t width = std::min(stretch, dy.cols() - first);
        float sums[stretch] = {};
        for (std::int64_t row = index.offsets[e]; row < index.offsets[e + 1]; ++row) {
          const float factor = weight != nullptr ? weight[index.pairs[row]] : 1.0f;
          const T* from = dy_rows[rows == RowsOf::tokens ? index.pairs[row] / index.k : row];
          each_vector(0, width, [&](std::int64_t i, auto part) {
            store(sums + i, load(sums + i, part) + load(from + first + i, part) * factor, part);
          });
        }
        float* to = to_rows[e] + first;
        for (std::int64_t i = 0; i < width; ++i) to[i] = mode == Grad::accumulate ? to[i] + sums[i] : sums[i];
      }
    });
  });
}

}  // namespace inlay::ops::cpu
