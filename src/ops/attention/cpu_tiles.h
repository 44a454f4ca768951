#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/transpose.h"

// The tiles of host attention and the products between them. Everything is computed transposed, S^T = K Q^T with keys
// down and queries across: a vector then holds some queries, so that the softmax needs no sums across lanes, and the
// scores leave one product in the layout in which the next one wants them.
//
// A product C = A B reads A row by row. B has a layout of its own, made by pack_b*: plain rows for fp32; for bf16 the
// pairs of rows that AMX multiplies at once, interleaved. Rows and columns past the end of a block are packed as zeros.
namespace inlay::ops::cpu {

using backend::cpu::f32v;
using backend::cpu::i32v;
using backend::cpu::lanes;
using backend::cpu::splat;
using backend::cpu::transpose;
using backend::cpu::u16v;
using backend::cpu::u32v;

inline constexpr std::int64_t block_size = 64;  // of queries and of keys
inline constexpr std::int64_t block_step = 32;  // a ragged block is padded to a multiple of this

constexpr std::int64_t padded(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Some tokens of one head: `count` rows of `width` elements.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride, count, width;
};

// The first n elements of a vector, the others zero.
inline f32v load_to(const float* from, std::int64_t n) {
  return n >= lanes ? backend::cpu::load(from) : backend::cpu::load_some(from, n);
}
inline f32v load_to(const bf16* from, std::int64_t n) {
  return n >= lanes ? backend::cpu::load(from) : backend::cpu::load_some(from, n);
}

// 2^x for x that is not far above zero; 0 for very negative x. `precise` is for fp32 results (a unit or two in the last
// place); otherwise within 7e-6, far below bf16's rounding.
template <bool precise>
f32v exp2(f32v x) {
#if defined(__AVX512F__)
  const f32v n = _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = backend::cpu::maximum(x, splat(-150.0f));
  const f32v shifted = x + 12582912.0f;
  const f32v n = shifted - 12582912.0f;
#endif
  const f32v r = x - n;  // exact; within half a unit
  f32v p;
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
  const auto scale = (f32v)((((u32v)shifted - 0x4b400000u) + 127u) << 23);
  return backend::cpu::select(x < splat(-126.0f), f32v{}, p * scale);
#endif
}

// The natural logarithm of positive normal numbers, to a unit in the last place or two.
inline f32v log(f32v x) {
  const u32v bits = (u32v)x - 0x3f3504f3u;  // so that the mantissa lies in [sqrt(1/2), sqrt(2))
  const f32v exponent = __builtin_convertvector((i32v)bits >> 23, f32v);
  const f32v mantissa = (f32v)((bits & 0x007fffffu) + 0x3f3504f3u);
  const f32v s = (mantissa - 1.0f) / (mantissa + 1.0f);
  const f32v t = s * s;
  const f32v series = t * (0.33333333f + t * (0.2f + t * (0.14285714f + t * 0.11111111f)));
  return exponent * 0.69314718f + (2.0f * s + 2.0f * s * series);
}

// C [m, n] = or += A [m, k] B [k, n] in plain fp32 rows. n is a multiple of a vector, m of 4.
void product(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
             std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate);

// fp32 arithmetic, for fp32 tensors and for bf16 tensors where there is no AMX.
struct FloatTiles {
  using Element = float;
  static constexpr bool one_layout = true;           // A and B look the same
  static constexpr std::int64_t depth_step = lanes;  // to which a sum over the head's elements is padded

  struct Scope {
    Scope() {}
  };

  template <class T>
  static void pack_a(float* to, std::int64_t ld, const HeadRows<const T>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); ++r) {
      for (std::int64_t c = 0; c < rows.width; c += lanes) {
        const f32v v = r < rows.count ? load_to(rows.data + r * rows.stride + c, rows.width - c) : f32v{};
        backend::cpu::store(to + r * ld + c, v);
      }
    }
  }
  template <class T>
  static void pack_b(float* to, std::int64_t ld, const HeadRows<const T>& rows) {
    pack_a(to, ld, rows);
  }
  // [width, rows], block_size elements from one row to the next
  template <class T>
  static void pack_a_transposed(float* to, const HeadRows<const T>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); r += lanes) {
      for (std::int64_t c = 0; c < rows.width; c += lanes) {
        u32v v[lanes];
        for (std::int64_t i = 0; i < lanes; ++i) {
          const T* from = rows.data + (r + i) * rows.stride + c;
          v[i] = r + i < rows.count ? (u32v)load_to(from, rows.width - c) : u32v{};
        }
        transpose(v);
        for (std::int64_t i = 0; i < lanes; ++i) backend::cpu::store(to + (c + i) * block_size + r, (f32v)v[i]);
      }
    }
  }
  template <class T>
  static void pack_b_transposed(float* to, const HeadRows<const T>& rows) {
    pack_a_transposed(to, rows);
  }

  // Two neighbouring rows (the first even) of a [block, block] operand, a vector of each, as they are stored.
  struct Rounded {
    f32v even, odd;
  };
  static Rounded round(f32v even, f32v odd) { return {even, odd}; }
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
