#pragma once

#include <array>
#include <cstdint>

#include "backend/cpu/vec.h"
#include "core/philox.h"

// Philox on the host, a vector of blocks at a time.
namespace inlay::ops::cpu {

using backend::cpu::lanes;
using backend::cpu::u32v;
using backend::cpu::u64v;

// The low halves of 64-bit words times a constant of 32 bits, in full: one instruction, where the compiler multiplies
// all 64 bits by all 64.
inline u64v product(u64v x, std::uint32_t factor) {
#if defined(__AVX512F__)
  return (u64v)_mm512_maskz_mul_epu32(0xff, (__m512i)x, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
  return (u64v)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(factor));
#elif defined(__SSE2__)
  return (u64v)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x(factor));
#else
  return (x & 0xffffffffu) * factor;
#endif
}

// Philox::words for as many blocks in a row as a vector has lanes, from a multiple of that: word j of block i is lane i
// of the j-th vector. The state of a block lies in 64 bits, of which the upper half is rubbish: products take only the
// lower one.
inline std::array<u32v, 4> philox_words(std::uint64_t key, std::uint64_t block, std::uint64_t stream) {
  struct State {
    u64v x[4];
  };
  constexpr auto evens = backend::cpu::each_lane<u64v>([](std::int64_t i) { return 2 * i; });
  const auto start = [&](std::uint64_t odd) {
    const u64v counters = evens + (block + odd);  // carries into the upper word, as it must
    return State{{counters, counters >> 32, u64v{} + stream, u64v{} + (stream >> 32)}};
  };
  State even = start(0), odd = start(1);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < Philox::rounds; ++round) {
    for (State* state : {&even, &odd}) {
      u64v(&x)[4] = state->x;
      const u64v p0 = product(x[0], Philox::factor0), p1 = product(x[2], Philox::factor1);
      x[0] = (p1 >> 32) ^ x[1] ^ k0;
      x[1] = p1;
      x[2] = (p0 >> 32) ^ x[3] ^ k1;
      x[3] = p0;
    }
    k0 += Philox::step0;
    k1 += Philox::step1;
  }
  std::array<u32v, 4> words;
  for (int j = 0; j < 4; ++j) {
    words[static_cast<std::size_t>(j)] = (u32v)((even.x[j] & 0xffffffffu) | (odd.x[j] << 32));
  }
  return words;
}

}  // namespace inlay::ops::cpu
