#pragma once

#include <cmath>

#include "ops/reference/subspace.h"
#include "support/device_tensors.h"

// Matrices of known singular vectors, for tests of what trains in subspaces.
namespace inlay::testing {

using DoubleMatrix = ops::reference::Matrix<double>;

inline DoubleMatrix random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1.0) {
  return {rows, cols, random_values(rows * cols, seed, scale)};
}

// Orthonormal rows, by Gram-Schmidt done twice.
inline DoubleMatrix orthonormal_rows(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  DoubleMatrix m = random_matrix(rows, cols, seed);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t k = 0; k < i; ++k) {
        double dot = 0;
        for (std::int64_t j = 0; j < cols; ++j) dot += m(i, j) * m(k, j);
        for (std::int64_t j = 0; j < cols; ++j) m(i, j) -= dot * m(k, j);
      }
    }
    double norm = 0;
    for (std::int64_t j = 0; j < cols; ++j) norm += m(i, j) * m(i, j);
    for (std::int64_t j = 0; j < cols; ++j) m(i, j) /= std::sqrt(norm);
  }
  return m;
}

inline DoubleMatrix rows_of(const DoubleMatrix& m, std::int64_t begin, std::int64_t end) {
  return {end - begin, m.cols, {m.data.begin() + begin * m.cols, m.data.begin() + end * m.cols}};
}

inline DoubleMatrix difference(DoubleMatrix a, const DoubleMatrix& b) {
  for (std::size_t i = 0; i < a.data.size(); ++i) a.data[i] -= b.data[i];
  return a;
}

inline DoubleMatrix sum(DoubleMatrix a, const DoubleMatrix& b) {
  for (std::size_t i = 0; i < a.data.size(); ++i) a.data[i] += b.data[i];
  return a;
}

// What of the rows lies in the span of orthonormal rows.
inline DoubleMatrix along(const DoubleMatrix& rows, const DoubleMatrix& directions) {
  return ops::reference::product(ops::reference::product(rows, ops::reference::transposed(directions)), directions);
}

// As a basis takes its rows.
inline std::vector<float> floats(const DoubleMatrix& m) { return {m.data.begin(), m.data.end()}; }

// Room on the host for the lower halves of the bases of a test.
inline constexpr std::size_t bases_on_host = std::size_t{4} << 20;

inline double norm(const DoubleMatrix& m) {
  double sum = 0;
  for (const double value : m.data) sum += value * value;
  return std::sqrt(sum);
}

inline double largest(const DoubleMatrix& m) {
  double most = 0;
  for (const double value : m.data) most = std::max(most, std::fabs(value));
  return most;
}

}  // namespace inlay::testing
