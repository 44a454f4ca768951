#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "backend/cpu/vec.h"

// The tiles of host attention and the products between them. Everything is computed transposed, S^T = K Q^T with keys
// down and queries across: a vector then holds sixteen queries, so that the softmax needs no sums across lanes, and the
// scores leave one product in the layout in which the next one wants them.
//
// A product C = A B reads A row by row. B has a layout of its own, made by pack_b*: plain rows for fp32; for bf16 the
// pairs of rows that AMX multiplies at once, interleaved. Rows and columns past the end of a block are packed as zeros.
namespace inlay::ops::cpu {

using backend::cpu::f32x16;
using backend::cpu::i32x16;
using backend::cpu::lanes;
using backend::cpu::splat;
using backend::cpu::u16x16;
using backend::cpu::u32x16;

inline constexpr std::int64_t block_size = 64;  // of queries and of keys
inline constexpr std::int64_t block_step = 32;  // a ragged block is padded to a multiple of this

constexpr std::int64_t padded(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Some tokens of one head: `count` rows of `width` elements.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride, count, width;
};

// The first n of sixteen elements, the others zero.
inline f32x16 load_to(const float* from, std::int64_t n) {
  return n >= lanes ? backend::cpu::load(from) : backend::cpu::load_some(from, n);
}
inline f32x16 load_to(const bf16* from, std::int64_t n) {
  return n >= lanes ? backend::cpu::load(from) : backend::cpu::load_some(from, n);
}

inline u32x16 interleave_low(u32x16 a, u32x16 b) {
  return __builtin_shuffle(a, b, u32x16{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29});
}
inline u32x16 interleave_high(u32x16 a, u32x16 b) {
  return __builtin_shuffle(a, b, u32x16{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31});
}

// Rows become columns: sixteen vectors of sixteen words.
inline void transpose(u32x16 (&v)[16]) {
  u32x16 t[16];
  for (int i = 0; i < 16; i += 2) {  // words within quarters, pairs of rows
    t[i] = interleave_low(v[i], v[i + 1]);
    t[i + 1] = interleave_high(v[i], v[i + 1]);
  }
  const u32x16 low_pairs = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  const u32x16 high_pairs = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
  for (int i = 0; i < 16; i += 4) {  // now v[i + c] holds words c, 4 + c, 8 + c, 12 + c of rows i .. i + 3
    v[i] = __builtin_shuffle(t[i], t[i + 2], low_pairs);
    v[i + 1] = __builtin_shuffle(t[i], t[i + 2], high_pairs);
    v[i + 2] = __builtin_shuffle(t[i + 1], t[i + 3], low_pairs);
    v[i + 3] = __builtin_shuffle(t[i + 1], t[i + 3], high_pairs);
  }
  const u32x16 even_quarters = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  const u32x16 odd_quarters = {4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
  for (int c = 0; c < 4; ++c) {
    const u32x16 a = __builtin_shuffle(v[c], v[4 + c], even_quarters);       // words c, 8 + c of rows 0 .. 7
    const u32x16 b = __builtin_shuffle(v[c], v[4 + c], odd_quarters);        // words 4 + c, 12 + c
    const u32x16 d = __builtin_shuffle(v[8 + c], v[12 + c], even_quarters);  // the same of rows 8 .. 15
    const u32x16 e = __builtin_shuffle(v[8 + c], v[12 + c], odd_quarters);
    t[c] = __builtin_shuffle(a, d, even_quarters);
    t[8 + c] = __builtin_shuffle(a, d, odd_quarters);
    t[4 + c] = __builtin_shuffle(b, e, even_quarters);
    t[12 + c] = __builtin_shuffle(b, e, odd_quarters);
  }
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// 2^x for x that is not far above zero; 0 for very negative x. `precise` is for fp32 results (a unit or two in the last
// place); otherwise within 7e-6, far below bf16's rounding.
template <bool precise>
f32x16 exp2(f32x16 x) {
#if defined(__AVX512F__)
  const f32x16 n = _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = backend::cpu::maximum(x, splat(-150.0f));
  const f32x16 shifted = x + 12582912.0f;
  const f32x16 n = shifted - 12582912.0f;
#endif
  const f32x16 r = x - n;  // exact; within half a unit
  f32x16 p;
  if constexpr (precise) {
    p = splat(1.545316294e-4f);
    p = p * r + 1.339086336e-3f;
    p = p * r + 9.618082557e-3f;
    p = p * r + 5.550357114e-2f;
    p = p * r + 2.402265076e-1f;
    p = p * r + 6.931471880e-1f;
  } else {
    p = splat(9.656710289e-3f);
    p = p * r + 5.583828295e-2f;
    p = p * r + 2.402253010e-1f;
    p = p * r + 6.931367339e-1f;
  }
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(0xffff, p, n);
#else
  const auto scale = (f32x16)((((u32x16)shifted - 0x4b400000u) + 127u) << 23);
  return backend::cpu::select(x < splat(-126.0f), f32x16{}, p * scale);
#endif
}

// The natural logarithm of positive normal numbers, to a unit in the last place or two.
inline f32x16 log(f32x16 x) {
  const u32x16 bits = (u32x16)x - 0x3f3504f3u;  // so that the mantissa lies in [sqrt(1/2), sqrt(2))
  const f32x16 exponent = __builtin_convertvector((i32x16)bits >> 23, f32x16);
  const f32x16 mantissa = (f32x16)((bits & 0x007fffffu) + 0x3f3504f3u);
  const f32x16 s = (mantissa - 1.0f) / (mantissa + 1.0f);
  const f32x16 t = s * s;
  const f32x16 series = t * (0.33333333f + t * (0.2f + t * (0.14285714f + t * 0.11111111f)));
  return exponent * 0.69314718f + (2.0f * s + 2.0f * s * series);
}

// C [m, n] = or += A [m, k] B [k, n] in plain fp32 rows. n is a multiple of 16, m of 4.
void product(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
             std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate);

// fp32 arithmetic, for fp32 tensors and for bf16 tensors where there is no AMX.
struct FloatTiles {
  using Element = float;
  static constexpr bool one_layout = true;        // A and B look the same
  static constexpr std::int64_t depth_step = 16;  // to which a sum over the head's elements is padded

  struct Scope {
    Scope() {}
  };

  template <class T>
  static void pack_a(float* to, std::int64_t ld, const Rows<const T>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); ++r) {
      for (std::int64_t c = 0; c < rows.width; c += lanes) {
        const f32x16 v = r < rows.count ? load_to(rows.data + r * rows.stride + c, rows.width - c) : f32x16{};
        backend::cpu::store(to + r * ld + c, v);
      }
    }
  }
  template <class T>
  static void pack_b(float* to, std::int64_t ld, const Rows<const T>& rows) {
    pack_a(to, ld, rows);
  }
  // [width, rows], block_size elements from one row to the next
  template <class T>
  static void pack_a_transposed(float* to, const Rows<const T>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); r += lanes) {
      for (std::int64_t c = 0; c < rows.width; c += lanes) {
        u32x16 v[lanes];
        for (std::int64_t i = 0; i < lanes; ++i) {
          const T* from = rows.data + (r + i) * rows.stride + c;
          v[i] = r + i < rows.count ? (u32x16)load_to(from, rows.width - c) : u32x16{};
        }
        transpose(v);
        for (std::int64_t i = 0; i < lanes; ++i) backend::cpu::store(to + (c + i) * block_size + r, (f32x16)v[i]);
      }
    }
  }
  template <class T>
  static void pack_b_transposed(float* to, const Rows<const T>& rows) {
    pack_a_transposed(to, rows);
  }

  // Two neighbouring rows (the first even) of a [block, block] operand, sixteen columns of each, as they are stored.
  struct Rounded {
    f32x16 even, odd;
  };
  static Rounded round(f32x16 even, f32x16 odd) { return {even, odd}; }
  static void store_a(float* to, std::int64_t row, std::int64_t column, const Rounded& pair) {
    backend::cpu::store(to + row * block_size + column, pair.even);
    backend::cpu::store(to + (row + 1) * block_size + column, pair.odd);
  }
  static void store_b(float* to, std::int64_t row, std::int64_t column, const Rounded& pair) {
    store_a(to, row, column, pair);
  }

  static void multiply(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                       std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
    product(c, ldc, a, lda, b, ldb, m, n, k, accumulate);
  }
};

}  // namespace inlay::ops::cpu
