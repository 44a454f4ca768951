#pragma once

#include "backend/cpu/vec.h"

namespace inlay::backend::cpu {

// Lanes of two vectors, those of the second from `lanes` on, by which rows become columns: single words, then pairs of
// them, within quarters of four words; then whole quarters.
struct Transposition {
  static constexpr u32v low_words = each_lane<u32v>([](auto i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * lanes; });
  static constexpr u32v high_words = low_words + 2;
  static constexpr u32v low_pairs = each_lane<u32v>([](auto i) { return i / 4 * 4 + i % 2 + i % 4 / 2 * lanes; });
  static constexpr u32v high_pairs = low_pairs + 2;
  static constexpr u32v even_quarters = each_lane<u32v>([](auto i) { return i / 4 * 8 + i % 4; });
  static constexpr u32v odd_quarters = even_quarters + 4;
};

// Rows become columns: as many vectors as each has words.
inline void transpose(u32v (&v)[lanes]) {
  using Order = Transposition;
  u32v t[lanes];
  for (int i = 0; i < lanes; i += 2) {
    t[i] = __builtin_shuffle(v[i], v[i + 1], Order::low_words);
    t[i + 1] = __builtin_shuffle(v[i], v[i + 1], Order::high_words);
  }
  for (int i = 0; i < lanes; i += 4) {  // now v[i + c] holds words c, 4 + c, ... of rows i .. i + 3
    v[i] = __builtin_shuffle(t[i], t[i + 2], Order::low_pairs);
    v[i + 1] = __builtin_shuffle(t[i], t[i + 2], Order::high_pairs);
    v[i + 2] = __builtin_shuffle(t[i + 1], t[i + 3], Order::low_pairs);
    v[i + 3] = __builtin_shuffle(t[i + 1], t[i + 3], Order::high_pairs);
  }
  if constexpr (lanes == 8) {
    for (int c = 0; c < 4; ++c) {
      t[c] = __builtin_shuffle(v[c], v[4 + c], Order::even_quarters);
      t[4 + c] = __builtin_shuffle(v[c], v[4 + c], Order::odd_quarters);
    }
    for (int i = 0; i < lanes; ++i) v[i] = t[i];
  } else if constexpr (lanes == 16) {
    for (int c = 0; c < 4; ++c) {
      const u32v a = __builtin_shuffle(v[c], v[4 + c], Order::even_quarters);       // words c, 8 + c of rows 0 .. 7
      const u32v b = __builtin_shuffle(v[c], v[4 + c], Order::odd_quarters);        // words 4 + c, 12 + c
      const u32v d = __builtin_shuffle(v[8 + c], v[12 + c], Order::even_quarters);  // the same of rows 8 .. 15
      const u32v e = __builtin_shuffle(v[8 + c], v[12 + c], Order::odd_quarters);
      t[c] = __builtin_shuffle(a, d, Order::even_quarters);
      t[8 + c] = __builtin_shuffle(a, d, Order::odd_quarters);
      t[4 + c] = __builtin_shuffle(b, e, Order::even_quarters);
      t[12 + c] = __builtin_shuffle(b, e, Order::odd_quarters);
    }
    for (int i = 0; i < lanes; ++i) v[i] = t[i];
  }
}

}  // namespace inlay::backend::cpu
