#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <span>

// Matrices of `cols` columns, row after row. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void column_dot(std::span<S> out, std::span<const S> a, std::span<const S> b) {
  for (S& sum : out) sum = S(0);
  for (std::size_t i = 0; i < a.size(); ++i) out[i % out.size()] += a[i] * b[i];
}

template <class S>
void scale_columns(std::span<S> y, std::span<const S> x, std::span<const S> factors) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factors[i % factors.size()];
}

template <class S>
void row_norms(std::span<S> out, std::span<const S> x) {
  using std::sqrt;
  const std::size_t cols = x.size() / out.size();
  for (std::size_t row = 0; row < out.size(); ++row) {
    S squares(0);
    for (std::size_t i = row * cols; i < (row + 1) * cols; ++i) squares += x[i] * x[i];
    out[row] = sqrt(squares);
  }
}

}  // namespace inlay::ops::reference
