#include "ops/attention/cpu_amx.h"

#include "core/error.h"

namespace inlay::ops::cpu {

namespace {

// A 32 x 32 piece of C in tiles 0 .. 3, against two tiles of A and two of B at a time.
void piece_2x2(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
               std::int64_t k, bool accumulate) {
  const std::int64_t c_bytes = ldc * 4, a_bytes = lda * 2, b_bytes = ldb * 4;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, c + 16 * ldc, c_bytes);
    _tile_loadd(3, c + 16 * ldc + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t step = 0; step < k; step += 32) {
    const bf16* b_rows = b + step * ldb;
    _tile_loadd(4, a + step, a_bytes);
    _tile_loadd(6, b_rows, b_bytes);
    _tile_loadd(7, b_rows + 32, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * lda + step, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, c + 16 * ldc, c_bytes);
  _tile_stored(3, c + 16 * ldc + 16, c_bytes);
}

// What is left where m / 16 is odd, and where n / 16 is odd.
void piece_1x2(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
               std::int64_t k, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(1, c + 16, ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (std::int64_t step = 0; step < k; step += 32) {
    _tile_loadd(4, a + step, lda * 2);
    _tile_loadd(6, b + step * ldb, ldb * 4);
    _tile_loadd(7, b + step * ldb + 32, ldb * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(1, c + 16, ldc * 4);
}

void piece_2x1(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
               std::int64_t k, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(2, c + 16 * ldc, ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(2);
  }
  for (std::int64_t step = 0; step < k; step += 32) {
    _tile_loadd(6, b + step * ldb, ldb * 4);
    _tile_loadd(4, a + step, lda * 2);
    _tile_loadd(5, a + 16 * lda + step, lda * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(2, c + 16 * ldc, ldc * 4);
}

}  // namespace

void amx_product(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
                 std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  asm volatile("" ::: "memory");  // the compiler is not told that tile loads read memory, nor that stores write it
  for (std::int64_t row = 0; row < m; row += 32) {
    for (std::int64_t column = 0; column < n; column += 32) {
      float* to = c + row * ldc + column;
      const bf16 *from_a = a + row * lda, *from_b = b + column * 2;
      const bool tall = m - row >= 32, wide = n - column >= 32;
      INLAY_ASSERT(tall || wide, "a product of {} x {} is too small for the tiles", m, n);
      const auto piece = tall && wide ? piece_2x2 : wide ? piece_1x2 : piece_2x1;
      piece(to, ldc, from_a, lda, from_b, ldb, k, accumulate);
    }
  }
  asm volatile("" ::: "memory");
}

}  // namespace inlay::ops::cpu
