#pragma once

#include <array>
#include <cstdint>

#include "backend/cpu/vec.h"
#include "core/philox.h"

// Philox on the host, sixteen blocks at a time.
namespace inlay::ops::cpu {

using backend::cpu::u32x16;
using u64x8 = std::uint64_t __attribute__((vector_size(64)));

// The low halves of eight words times a constant of 32 bits, in full.
inline u64x8 product(u64x8 x, std::uint32_t factor) {
#ifdef __AVX512F__  // one instruction; the compiler multiplies all 64 bits by all 64
  return (u64x8)_mm512_maskz_mul_epu32(0xff, (__m512i)x, _mm512_set1_epi64(factor));
#else
  return (x & 0xffffffffu) * factor;
#endif
}

// Philox::words for sixteen blocks in a row, from a multiple of 16: word j of block i is lane i of the j-th vector.
// The state of a block lies in 64 bits, of which the upper half is rubbish: products take only the lower one.
inline std::array<u32x16, 4> philox_words(std::uint64_t key, std::uint64_t block, std::uint64_t stream) {
  struct State {
    u64x8 x[4];
  };
  const auto start = [&](std::uint64_t odd) {
    const u64x8 counters = u64x8{0, 2, 4, 6, 8, 10, 12, 14} + (block + odd);  // carries into the upper word, as it must
    return State{{counters, counters >> 32, u64x8{} + stream, u64x8{} + (stream >> 32)}};
  };
  State even = start(0), odd = start(1);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < Philox::rounds; ++round) {
    for (State* state : {&even, &odd}) {
      u64x8(&x)[4] = state->x;
      const u64x8 p0 = product(x[0], Philox::factor0), p1 = product(x[2], Philox::factor1);
      x[0] = (p1 >> 32) ^ x[1] ^ k0;
      x[1] = p1;
      x[2] = (p0 >> 32) ^ x[3] ^ k1;
      x[3] = p0;
    }
    k0 += Philox::step0;
    k1 += Philox::step1;
  }
  std::array<u32x16, 4> words;
  for (int j = 0; j < 4; ++j) {
    words[static_cast<std::size_t>(j)] = (u32x16)((even.x[j] & 0xffffffffu) | (odd.x[j] << 32));
  }
  return words;
}

}  // namespace inlay::ops::cpu
