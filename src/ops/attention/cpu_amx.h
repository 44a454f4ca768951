#pragma once

#include "backend/cpu/tile_scope.h"
#include "ops/attention/cpu_tiles.h"

namespace inlay::ops::cpu {

// C [m, n] = or += A [m, k] B [k, n], bf16 in, fp32 out, on AMX. m and n are multiples of 16, at least one of them of
// 32, and k of 32; B is interleaved:
// element (row, column) stands at (row / 2 · ldb + column) · 2 + row % 2. Wants an AmxTiles::Scope around it.
void amx_product(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
                 std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate);

// bf16 arithmetic with fp32 sums; only for a set of AMX.
struct AmxTiles {
  using Element = bf16;
  static constexpr bool one_layout = false;
  static constexpr std::int64_t depth_step = 32;

  using Scope = backend::cpu::TileScope;  // all eight tiles: 16 rows of 64 bytes

  // Up to 32 elements of a row as sixteen words of two, the rest zero.
  static u32v words(const bf16* from, std::int64_t n) {
    u32v v = {};
    if (n >= 32) {
      std::memcpy(&v, from, 64);
      return v;
    }
    return (u32v)_mm512_maskz_loadu_epi16((1u << n) - 1, from);
  }
  // Up to 16 elements, each in the low half of its word.
  static u32v halves(const bf16* from, std::int64_t n) {
    u16v v = {};
    if (n >= lanes) {
      std::memcpy(&v, from, sizeof v);
    } else {
      std::memcpy(&v, from, static_cast<std::size_t>(n) * sizeof(bf16));
    }
    return (u32v)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);  // the compiler would go by halves
  }
  static void store_low_halves(bf16* to, u32v v) {
    const u16v low = __builtin_convertvector(v, u16v);
    std::memcpy(static_cast<void*>(to), &low, sizeof low);
  }

  static void pack_a(bf16* to, std::int64_t ld, const HeadRows<const bf16>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); ++r) {
      for (std::int64_t c = 0; c < ld; c += 32) {
        const std::int64_t rest = rows.width - c;
        // rows come from far apart, and the next ones are known (a prefetch past the end does nothing)
        __builtin_prefetch(rows.data + (r + 2 * lanes) * rows.stride + c);
        const u32v v = r < rows.count && rest > 0 ? words(rows.data + r * rows.stride + c, rest) : u32v{};
        std::memcpy(static_cast<void*>(to + r * ld + c), &v, sizeof v);
      }
    }
  }

  // B [rows, ld]
  static void pack_b(bf16* to, std::int64_t ld, const HeadRows<const bf16>& rows) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); r += 2) {
      for (std::int64_t c = 0; c < rows.width; c += lanes) {
        const bf16* from = rows.data + r * rows.stride + c;
        u32v v = {};
        if (r < rows.count) v = halves(from, rows.width - c);
        if (r + 1 < rows.count) v |= halves(from + rows.stride, rows.width - c) << 16;
        std::memcpy(static_cast<void*>(to + r * ld + c * 2), &v, sizeof v);
      }
    }
  }

  // Calls each(pair, row, v): v holds elements 2·pair and 2·pair + 1 of sixteen rows from `row` on.
  template <class Each>
  static void for_each_pair(const HeadRows<const bf16>& rows, const Each& each) {
    for (std::int64_t r = 0; r < padded(rows.count, block_step); r += lanes) {
      for (std::int64_t c = 0; c < rows.width; c += 32) {
        u32v v[lanes];
        for (std::int64_t i = 0; i < lanes; ++i) {
          const bool there = r + i < rows.count;
          __builtin_prefetch(rows.data + (r + i + lanes) * rows.stride + c);
          v[i] = there ? words(rows.data + (r + i) * rows.stride + c, rows.width - c) : u32v{};
        }
        transpose(v);
        for (std::int64_t i = 0; i < lanes; ++i) each(c / 2 + i, r, v[i]);
      }
    }
  }
  // A [width up to a multiple of 32, rows]; block_size elements from one row to the next
  static void pack_a_transposed(bf16* to, const HeadRows<const bf16>& rows) {
    for_each_pair(rows, [&](std::int64_t pair, std::int64_t row, u32v v) {
      store_low_halves(to + 2 * pair * block_size + row, v & 0xffffu);
      store_low_halves(to + (2 * pair + 1) * block_size + row, v >> 16);
    });
  }
  // B [width up to a multiple of 32, block_size]
  static void pack_b_transposed(bf16* to, const HeadRows<const bf16>& rows) {
    for_each_pair(rows, [&](std::int64_t pair, std::int64_t row, u32v v) {
      std::memcpy(static_cast<void*>(to + (pair * block_size + row) * 2), &v, sizeof v);
    });
  }

  // Two rows to the nearest bf16, ties to even, one after the other.
  using Rounded = std::uint16_t __attribute__((vector_size(64)));
  static Rounded round(f32v even, f32v odd) { return (Rounded)_mm512_cvtne2ps_pbh(odd, even); }
  static void store_a(bf16* to, std::int64_t row, std::int64_t column, Rounded pair) {
    char* at = reinterpret_cast<char*>(to + row * block_size + column);
    std::memcpy(at, &pair, 32);
    std::memcpy(at + block_size * 2, reinterpret_cast<const char*>(&pair) + 32, 32);
  }
  static void store_b(bf16* to, std::int64_t row, std::int64_t column, Rounded pair) {
    const Rounded joined =
        __builtin_shuffle(pair, Rounded{0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    std::memcpy(static_cast<void*>(to + row * block_size + column * 2), &joined, sizeof joined);
  }

  static void multiply(float* c, std::int64_t ldc, const bf16* a, std::int64_t lda, const bf16* b, std::int64_t ldb,
                       std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
    amx_product(c, ldc, a, lda, b, ldb, m, n, k, accumulate);
  }
};

}  // namespace inlay::ops::cpu
