#pragma once

#include <cstdint>
#include <vector>

// Gradients of the factors of W = Uᵀ·diag(s)·V (rows of U [r, N] and V [r, M] are directions) by the three routes of
// weights/route.h, in scalar loops. All say the same; S is float or double.
namespace inlay::ops::reference {

template <class S>
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<S> data;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(static_cast<std::size_t>(r * c)) {}
  Matrix(std::int64_t r, std::int64_t c, std::vector<S> values) : rows(r), cols(c), data(std::move(values)) {}
  S& operator()(std::int64_t i, std::int64_t j) { return data[static_cast<std::size_t>(i * cols + j)]; }
  const S& operator()(std::int64_t i, std::int64_t j) const { return data[static_cast<std::size_t>(i * cols + j)]; }
};

template <class S>
Matrix<S> transposed(const Matrix<S>& a) {
  Matrix<S> result(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) result(j, i) = a(i, j);
  }
  return result;
}

template <class S>
Matrix<S> product(const Matrix<S>& a, const Matrix<S>& b) {
  Matrix<S> result(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) result(i, j) += a(i, k) * b(k, j);
    }
  }
  return result;
}

template <class S>
Matrix<S> scaled_rows(Matrix<S> a, const std::vector<S>& scale) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) a(i, j) *= scale[static_cast<std::size_t>(i)];
  }
  return a;
}

template <class S>
struct Factors {
  Matrix<S> u;       // [r, N]
  std::vector<S> s;  // [r]
  Matrix<S> v;       // [r, M]

  Matrix<S> weight() const { return product(transposed(u), scaled_rows(v, s)); }
};

// x [T, M], dy [T, N]. The routes differ in what they form: x·Vᵀ and dy·Uᵀ, or dyᵀ·x.
template <class S>
Factors<S> direct_gradients(const Factors<S>& f, const Matrix<S>& x, const Matrix<S>& dy) {
  const Matrix<S> xv = product(x, transposed(f.v)), yu = product(dy, transposed(f.u));
  Factors<S> result{scaled_rows(product(transposed(xv), dy), f.s), std::vector<S>(f.s.size()),
                    scaled_rows(product(transposed(yu), x), f.s)};
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t i = 0; i < f.u.rows; ++i) result.s[static_cast<std::size_t>(i)] += xv(t, i) * yu(t, i);
  }
  return result;
}

template <class S>
Factors<S> dense_gradients(const Factors<S>& f, const Matrix<S>& x, const Matrix<S>& dy) {
  const Matrix<S> g = product(transposed(dy), x);
  const Matrix<S> vg = product(f.v, transposed(g)), ug = product(f.u, g);
  Factors<S> result{scaled_rows(vg, f.s), std::vector<S>(f.s.size()), scaled_rows(ug, f.s)};
  for (std::int64_t i = 0; i < f.u.rows; ++i) {
    for (std::int64_t n = 0; n < f.u.cols; ++n) result.s[static_cast<std::size_t>(i)] += f.u(i, n) * vg(i, n);
  }
  return result;
}

// As automatic differentiation of y = ((x·Vᵀ)∘s)·U would have it.
template <class S>
Factors<S> factored_gradients(const Factors<S>& f, const Matrix<S>& x, const Matrix<S>& dy) {
  const Matrix<S> h = product(x, transposed(f.v));
  Matrix<S> scaled = h;
  for (std::int64_t t = 0; t < h.rows; ++t) {
    for (std::int64_t i = 0; i < h.cols; ++i) scaled(t, i) *= f.s[static_cast<std::size_t>(i)];
  }
  Factors<S> result{product(transposed(scaled), dy), std::vector<S>(f.s.size()), {}};
  Matrix<S> dscaled = product(dy, transposed(f.u));
  for (std::int64_t t = 0; t < h.rows; ++t) {
    for (std::int64_t i = 0; i < h.cols; ++i) {
      result.s[static_cast<std::size_t>(i)] += dscaled(t, i) * h(t, i);
      dscaled(t, i) *= f.s[static_cast<std::size_t>(i)];
    }
  }
  result.v = product(transposed(dscaled), x);
  return result;
}

}  // namespace inlay::ops::reference
