#include <immintrin.h>

#include "backend/cpu/gemm_driver.h"
#include "backend/cpu/tile_scope.h"

// bf16 in tiles; compiled for AVX-512 and AMX alone.
namespace inlay::backend::cpu {

namespace {

constexpr std::int64_t tile = 16;        // rows of a tile, and fp32 columns
constexpr std::int64_t tile_k = 32;      // bf16 to a tile row
constexpr std::int64_t tile_size = 512;  // bf16 to a tile

__mmask32 first32(std::int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((std::uint32_t{1} << n) - 1);
}
__mmask16 first16(std::int64_t n) {
  return n >= 16  ? static_cast<__mmask16>(0xffff)
         : n <= 0 ? static_cast<__mmask16>(0)
                  : static_cast<__mmask16>((1u << n) - 1);
}

// In place: 16 rows of 16 words become its 16 columns.
inline void transpose_words(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4g + c], lane l: column 4l + c of rows 4g .. 4g+3.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44),
                  high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44),
                  high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Two rows of 32 numbers as pairs: the first sixteen into low, the others into high.
inline void interleave(__m512i even, __m512i odd, __m512i& low, __m512i& high) {
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  even = _mm512_permutexvar_epi64(order, even);
  odd = _mm512_permutexvar_epi64(order, odd);
  low = _mm512_unpacklo_epi16(even, odd);
  high = _mm512_unpackhi_epi16(even, odd);
}

// Up to 16 rows of up to 32 numbers, contiguous along k: to[row][k].
inline void load_rows(__m512i (&r)[16], const bf16* from, std::int64_t ld, std::int64_t rows, __mmask32 mask) {
  for (int i = 0; i < 16; ++i) r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * ld) : _mm512_setzero_si512();
}

inline void store_rows(bf16* to, const __m512i (&r)[16]) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * tile_k, r[i]);
}

// from[k][x], contiguous along x, up to 32 of each, as two tiles of pairs [k/2][x][2].
inline void load_pairs(__m512i (&low)[16], __m512i (&high)[16], const bf16* from, std::int64_t ld, std::int64_t depth,
                       __mmask32 mask) {
  for (int i = 0; i < 16; ++i) {
    const __m512i even = 2 * i < depth ? _mm512_maskz_loadu_epi16(mask, from + 2 * i * ld) : _mm512_setzero_si512();
    const __m512i odd =
        2 * i + 1 < depth ? _mm512_maskz_loadu_epi16(mask, from + (2 * i + 1) * ld) : _mm512_setzero_si512();
    interleave(even, odd, low[i], high[i]);
  }
}

// Sixteen rows of pairs at a time: with both tiles in registers the compiler would have to spill.
template <int half>
inline void load_half_pairs(__m512i (&r)[16], const bf16* from, std::int64_t ld, std::int64_t depth, __mmask16 mask) {
  for (int i = 0; i < 16; ++i) {
    const auto row = [&](int k) {
      return k < depth ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + k * ld + half * 16))
                       : _mm512_setzero_si512();
    };
    r[i] = _mm512_or_si512(row(2 * i), _mm512_slli_epi32(row(2 * i + 1), 16));
  }
}

// Tiles 0 to 3 hold the sums, 4 and 5 two tiles of A, 6 and 7 two of B.
template <bool two_rows, bool two_cols>
void multiply_tiles(float* block, const bf16* a, const bf16* b, std::int64_t depth, bool add, Ahead& ahead) {
  constexpr std::int64_t ld = 32 * sizeof(float);
  // The compiler is not told that tile loads read memory: what was packed must be there now.
  asm volatile("" ::: "memory");
  if (add) {
    _tile_loadd(0, block, ld);
    if constexpr (two_cols) _tile_loadd(1, block + 16, ld);
    if constexpr (two_rows) _tile_loadd(2, block + 16 * 32, ld);
    if constexpr (two_rows && two_cols) _tile_loadd(3, block + 16 * 32 + 16, ld);
  } else {
    _tile_zero(0);
    if constexpr (two_cols) _tile_zero(1);
    if constexpr (two_rows) _tile_zero(2);
    if constexpr (two_rows && two_cols) _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += tile_k, a += 2 * tile_size, b += 2 * tile_size) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_cols) {
      _tile_loadd(7, b + tile_size, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (two_rows) {
      _tile_loadd(5, a + tile_size, 64);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (two_rows && two_cols) _tile_dpbf16ps(3, 5, 7);
    ahead.step();
  }
  _tile_stored(0, block, ld);
  if constexpr (two_cols) _tile_stored(1, block + 16, ld);
  if constexpr (two_rows) _tile_stored(2, block + 16 * 32, ld);
  if constexpr (two_rows && two_cols) _tile_stored(3, block + 16 * 32 + 16, ld);
  asm volatile("" ::: "memory");
}

// Panels of A: for every 32 of k, two tiles of 16 rows × 32. Panels of B: two tiles of 16 pairs × 16 columns.
template <class OutType>
struct AmxKernel {
  using In = bf16;
  using Packed = bf16;
  using Out = OutType;
  static constexpr std::int64_t mr = 32, nr = 32, k_unit = 32, kc = 1024, budget = std::int64_t{16} << 20;

  struct Session : TileScope {
    ~Session() { _mm_sfence(); }  // streamed lines of C are there before anybody is told so
  };

  static std::int64_t steps(std::int64_t depth) { return depth / k_unit; }

  static void pack_a(bf16* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                     std::int64_t k1) {
    const std::int64_t size = mr * round_up(k1 - k0, k_unit);
    for (std::int64_t m = begin; m < end; m += mr, to += size) pack_panel_a(to, g, m, k0, k1);
  }
  static void pack_b(bf16* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                     std::int64_t k1) {
    const std::int64_t size = nr * round_up(k1 - k0, k_unit);
    for (std::int64_t n = begin; n < end; n += nr, to += size) pack_panel_b(to, g, n, k0, k1);
  }

  static void pack_panel_a(bf16* to, const GemmArgs& g, std::int64_t m, std::int64_t k0, std::int64_t k1) {
    const auto* const a = static_cast<const bf16*>(g.a);
    const std::int64_t rows = std::min(mr, g.m - m);
    if (!g.transpose_a) {
      copy_rows(to, a + m * g.lda, g.lda, rows, k0, k1);
      return;
    }
    for (std::int64_t k = k0; k < k1; k += tile_k, to += 2 * tile_size) {
      __m512i r[16];
      load_half_pairs<0>(r, a + k * g.lda + m, g.lda, k1 - k, first16(rows));
      transpose_words(r);
      store_rows(to, r);
      load_half_pairs<1>(r, a + k * g.lda + m, g.lda, k1 - k, first16(rows - tile));
      transpose_words(r);
      store_rows(to + tile_size, r);
    }
  }

  static void pack_panel_b(bf16* to, const GemmArgs& g, std::int64_t n, std::int64_t k0, std::int64_t k1) {
    const auto* const b = static_cast<const bf16*>(g.b);
    const std::int64_t cols = std::min(nr, g.n - n);
    for (std::int64_t k = k0; k < k1; k += tile_k, to += 2 * tile_size) {
      if (!g.transpose_b) {
        __m512i low[16], high[16];
        load_pairs(low, high, b + k * g.ldb + n, g.ldb, k1 - k, first32(cols));
        store_rows(to, low);
        store_rows(to + tile_size, high);
      } else {
        __m512i r[16];
        const __mmask32 mask = first32(k1 - k);
        load_rows(r, b + n * g.ldb + k, g.ldb, cols, mask);
        transpose_words(r);
        store_rows(to, r);
        load_rows(r, b + (n + tile) * g.ldb + k, g.ldb, cols - tile, mask);
        transpose_words(r);
        store_rows(to + tile_size, r);
      }
    }
  }

  static void multiply(float* sums, const bf16* a, const bf16* b, const BlockExtent& extent, Ahead& ahead) {
    const bool two_cols = extent.cols > tile;
    if (extent.rows > tile) {
      two_cols ? multiply_tiles<true, true>(sums, a, b, extent.depth, extent.add, ahead)
               : multiply_tiles<true, false>(sums, a, b, extent.depth, extent.add, ahead);
    } else {
      two_cols ? multiply_tiles<false, true>(sums, a, b, extent.depth, extent.add, ahead)
               : multiply_tiles<false, false>(sums, a, b, extent.depth, extent.add, ahead);
    }
  }

  static void store(const GemmArgs& g, const float* block, std::int64_t m, std::int64_t n, bool stream) {
    const std::int64_t rows = std::min(mr, g.m - m), cols = std::min(nr, g.n - n);
    Out* c = static_cast<Out*>(g.c) + m * g.ldc + n;
    const __m512 alpha = _mm512_set1_ps(g.alpha), beta = _mm512_set1_ps(g.beta);
    const bool add = g.beta != 0.0f;
    for (std::int64_t i = 0; i < rows; ++i, block += nr, c += g.ldc) {
      __m512 low = _mm512_mul_ps(alpha, _mm512_load_ps(block));
      __m512 high = _mm512_mul_ps(alpha, _mm512_load_ps(block + 16));
      if constexpr (sizeof(Out) == 4) {
        const __mmask16 low_mask = first16(cols), high_mask = first16(cols - 16);
        if (add) {
          low = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(low_mask, c), low);
          high = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(high_mask, c + 16), high);
        }
        if (stream && cols == nr) {
          _mm512_stream_ps(c, low);
          _mm512_stream_ps(c + 16, high);
        } else {
          _mm512_mask_storeu_ps(c, low_mask, low);
          _mm512_mask_storeu_ps(c + 16, high_mask, high);
        }
      } else {
        const __mmask32 mask = first32(cols);
        if (add) {
          const __m512i old = _mm512_maskz_loadu_epi16(mask, c);
          low = _mm512_fmadd_ps(beta, widen(_mm512_castsi512_si256(old)), low);
          high = _mm512_fmadd_ps(beta, widen(_mm512_extracti64x4_epi64(old, 1)), high);
        }
        const auto both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        if (stream && cols == nr) {
          _mm512_stream_si512(reinterpret_cast<__m512i*>(c), both);
        } else {
          _mm512_mask_storeu_epi16(c, mask, both);
        }
      }
    }
  }

 private:
  static __m512 widen(__m256i half) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)); }

  // A few steps of every row at a time: long enough runs for the prefetcher, few enough streams.
  static void copy_rows(bf16* to, const bf16* from, std::int64_t ld, std::int64_t rows, std::int64_t k0,
                        std::int64_t k1) {
    constexpr std::int64_t run = 8 * tile_k;
    for (std::int64_t begin = k0; begin < k1; begin += run) {
      const std::int64_t end = std::min(begin + run, k1);
      for (std::int64_t row = 0; row < mr; ++row) {
        bf16* at = to + (begin - k0) / tile_k * 2 * tile_size + row * tile_k;
        for (std::int64_t k = begin; k < end; k += tile_k, at += 2 * tile_size) {
          const __m512i values =
              row < rows ? _mm512_maskz_loadu_epi16(first32(end - k), from + row * ld + k) : _mm512_setzero_si512();
          _mm512_store_si512(at, values);
        }
      }
    }
  }
};

std::size_t amx_workspace(const GemmArgs& args, DType) { return workspace_bytes<AmxKernel<float>>(args); }

void multiply(const GemmArgs& args, DType, DType out) {
  if (out == DType::f32) {
    run_gemm<AmxKernel<float>>(args);
  } else {
    run_gemm<AmxKernel<bf16>>(args);
  }
}

}  // namespace

extern "C" const GemmKernel INLAY_TABLE = {multiply, amx_workspace};

}  // namespace inlay::backend::cpu
