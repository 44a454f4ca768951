#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/error.h"

// Singular values by one-sided Jacobi rotations, in double: slow, short, and accurate even where they are tiny. What
// decompositions are held against.
namespace inlay::testing {

// Of a row-major matrix, descending; min(rows, cols) of them.
inline std::vector<double> jacobi_singular_values(const std::vector<double>& matrix, std::int64_t rows,
                                                  std::int64_t cols) {
  // Rotates pairs of vectors along the shorter side until all of them are orthogonal; their lengths are the values.
  const std::int64_t count = std::min(rows, cols), length = std::max(rows, cols);
  std::vector<std::vector<double>> x(static_cast<std::size_t>(count), std::vector<double>(matrix.size() / count));
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < length; ++j) {
      x[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] =
          matrix[static_cast<std::size_t>(rows <= cols ? i * cols + j : j * cols + i)];
    }
  }
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  double total = 0;
  for (const double value : matrix) total += value * value;
  bool oblique = true;
  for (int sweep = 0; oblique; ++sweep) {
    INLAY_ASSERT(sweep < 60, "Jacobi rotations of {} x {} do not end", rows, cols);
    oblique = false;
    for (std::size_t p = 0; p + 1 < x.size(); ++p) {
      for (std::size_t q = p + 1; q < x.size(); ++q) {
        const double pp = dot(x[p], x[p]), qq = dot(x[q], x[q]), pq = dot(x[p], x[q]);
        // Orthogonal to rounding, or both of them nothing but rounding of what was rotated away.
        if (std::abs(pq) <= 1e-15 * std::sqrt(pp * qq) + 1e-30 * total) continue;
        oblique = true;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta < 0 ? -1.0 : 1.0) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (std::size_t i = 0; i < x[p].size(); ++i) {
          const double a = x[p][i], b = x[q][i];
          x[p][i] = c * a - s * b;
          x[q][i] = s * a + c * b;
        }
      }
    }
  }
  std::vector<double> values;
  for (const auto& row : x) values.push_back(std::sqrt(dot(row, row)));
  std::sort(values.rbegin(), values.rend());
  return values;
}

}  // namespace inlay::testing
