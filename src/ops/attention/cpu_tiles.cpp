#include "ops/attention/cpu_tiles.h"

#include <algorithm>

namespace inlay::ops::cpu {

namespace {

constexpr int tile_rows = 4;
constexpr std::int64_t most_vectors = lanes == 16 ? 4 : 3;  // so that the sums fit 32 registers, or 16

// Four rows of A against `width` vectors of B's columns; the sums stay in registers.
template <int width>
void strip(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
           std::int64_t m, std::int64_t k, bool accumulate) {
  for (std::int64_t row = 0; row < m; row += tile_rows) {
    f32v sums[tile_rows][width];
    for (int i = 0; i < tile_rows; ++i) {
      for (int j = 0; j < width; ++j) {
        sums[i][j] = accumulate ? backend::cpu::load(c + (row + i) * ldc + j * lanes) : f32v{};
      }
    }
    const float* from = a + row * lda;
    for (std::int64_t step = 0; step < k; ++step) {
      f32v columns[width];
      for (int j = 0; j < width; ++j) columns[j] = backend::cpu::load(b + step * ldb + j * lanes);
      for (int i = 0; i < tile_rows; ++i) {
        const f32v factor = splat(from[i * lda + step]);
        for (int j = 0; j < width; ++j) sums[i][j] += factor * columns[j];
      }
    }
    for (int i = 0; i < tile_rows; ++i) {
      for (int j = 0; j < width; ++j) backend::cpu::store(c + (row + i) * ldc + j * lanes, sums[i][j]);
    }
  }
}

}  // namespace

void product(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
             std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  for (std::int64_t column = 0; column < n;) {
    const std::int64_t width = std::min<std::int64_t>((n - column) / lanes, most_vectors);
    switch (width) {
      case 4: strip<4>(c + column, ldc, a, lda, b + column, ldb, m, k, accumulate); break;
      case 3: strip<3>(c + column, ldc, a, lda, b + column, ldb, m, k, accumulate); break;
      case 2: strip<2>(c + column, ldc, a, lda, b + column, ldb, m, k, accumulate); break;
      default: strip<1>(c + column, ldc, a, lda, b + column, ldb, m, k, accumulate); break;
    }
    column += width * lanes;
  }
}

}  // namespace inlay::ops::cpu
