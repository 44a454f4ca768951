#include <cmath>
#include <optional>

#include "ops/column_sums.h"
#include "ops/rms_norm.h"

namespace inlay::ops::cpu {

namespace {

float reciprocal_root(f32v squares, std::int64_t cols, float eps) {
  return 1.0f / std::sqrt(backend::cpu::sum(squares) / static_cast<float>(cols) + eps);
}

// Σ over the row, in four sums so that additions overlap; term(i, Whole or Part) is a vector of it.
template <class Term>
f32v row_sum(std::int64_t cols, const Term& term) {
  f32v a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= cols; i += 4 * lanes) {
    a += term(i, Whole{});
    b += term(i + lanes, Whole{});
    c += term(i + 2 * lanes, Whole{});
    d += term(i + 3 * lanes, Whole{});
  }
  each_vector(i, cols, [&](std::int64_t at, auto part) { a += term(at, part); });
  return (a + b) + (c + d);
}

template <class T>
void normalise_row(T* out, const T* x, const T* weight, std::int64_t cols, float rstd, float offset) {
  each_vector(0, cols, [&](std::int64_t i, auto part) {
    store(out + i, load(x + i, part) * rstd * (load(weight + i, part) + offset), part);
  });
}

template <class T>
void forward(View out, ConstView x, ConstView weight, NormSpec norm) {
  const std::int64_t cols = x.cols();
  const Rows<T> out_rows(out);
  const Rows<const T> x_rows(x);
  const T* w = weight.as<T>();
  parallel_for(x.rows(), row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = x_rows[row];
      const f32v squares = row_sum(cols, [&](std::int64_t i, auto part) {
        const f32v value = load(from + i, part);
        return value * value;
      });
      normalise_row(out_rows[row], from, w, cols, reciprocal_root(squares, cols, norm.eps), norm.offset);
    }
  });
}

// The sum is read back as it was rounded, so that the norm sees what the residual stream holds.
template <class T>
void residual_forward(View out, View sum, ConstView x, ConstView delta, ConstView weight, NormSpec norm) {
  const std::int64_t cols = x.cols();
  const Rows<T> out_rows(out), sum_rows(sum);
  const Rows<const T> x_rows(x), delta_rows(delta);
  const T* w = weight.as<T>();
  parallel_for(x.rows(), row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *from = x_rows[row], *more = delta_rows[row];
      T* to = sum_rows[row];
      const f32v squares = row_sum(cols, [&](std::int64_t i, auto part) {
        store(to + i, load(from + i, part) + load(more + i, part), part);
        const f32v value = load(to + i, part);
        return value * value;
      });
      normalise_row(out_rows[row], to, w, cols, reciprocal_root(squares, cols, norm.eps), norm.offset);
    }
  });
}

// With n = x · rstd and w = offset + weight: dweight = Σ_rows dy · n, and dx = rstd · (w · dy - n · mean(w · dy · n)).
template <class T, bool accumulate>
void backward_row(T* dx, float* dweight, const T* dout, const T* x, const T* weight, std::int64_t cols, NormSpec norm) {
  f32v products{};
  const f32v squares = row_sum(cols, [&](std::int64_t i, auto part) {
    const f32v value = load(x + i, part);
    products += load(dout + i, part) * (load(weight + i, part) + norm.offset) * value;
    return value * value;
  });
  const float rstd = reciprocal_root(squares, cols, norm.eps);
  const float slope = backend::cpu::sum(products) * rstd * rstd * rstd / static_cast<float>(cols);
  each_vector(0, cols, [&](std::int64_t i, auto part) {
    const f32v dy = load(dout + i, part), value = load(x + i, part);
    if (dweight != nullptr) store(dweight + i, load(dweight + i, part) + dy * value * rstd, part);
    if (dx == nullptr) return;
    f32v result = dy * (load(weight + i, part) + norm.offset) * rstd - value * slope;
    if constexpr (accumulate) result += load(dx + i, part);
    store(dx + i, result, part);
  });
}

template <class T>
void backward(const RmsNormGrads& grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm, View scratch) {
  const std::int64_t cols = x.cols();
  const Rows<const T> dout_rows(dout), x_rows(x);
  std::optional<Rows<T>> dx_rows;
  if (grads.dx_mode != Grad::skip) dx_rows.emplace(grads.dx);
  const T* w = weight.as<T>();
  for_rows_with_sums(x.rows(), grads.dweight, grads.dweight_mode, scratch, [&](std::int64_t row, float* partial) {
    T* dx = dx_rows ? (*dx_rows)[row] : nullptr;
    if (grads.dx_mode == Grad::accumulate) {
      backward_row<T, true>(dx, partial, dout_rows[row], x_rows[row], w, cols, norm);
    } else {
      backward_row<T, false>(dx, partial, dout_rows[row], x_rows[row], w, cols, norm);
    }
  });
}

}  // namespace

void rms_norm_forward(Exec&, View out, ConstView x, ConstView weight, NormSpec norm) {
  with_activation(x.dtype(), [&](auto type) { forward<decltype(type)>(out, x, weight, norm); });
}

void residual_rms_norm_forward(Exec&, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm) {
  with_activation(x.dtype(), [&](auto type) { residual_forward<decltype(type)>(out, sum, x, delta, weight, norm); });
}

void rms_norm_backward(Exec&, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm,
                       View scratch) {
  with_activation(x.dtype(), [&](auto type) { backward<decltype(type)>(grads, dout, x, weight, norm, scratch); });
}

}  // namespace inlay::ops::cpu
