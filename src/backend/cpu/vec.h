#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"

// Sixteen floats at a time, in the compiler's own vector types: AVX-512 where the target has it, narrower code where
// not. Loads and stores convert from and to the storage dtype; *_some variants touch only the first n lanes (the rest
// read as zero), for ragged ends.
namespace inlay::backend::cpu {

inline constexpr std::int64_t lanes = 16;

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = std::int32_t __attribute__((vector_size(64)));
using u32x16 = std::uint32_t __attribute__((vector_size(64)));
using u16x16 = std::uint16_t __attribute__((vector_size(32)));

// value − 0 is value, −0 too, and costs a broadcast alone; 0 + value would be an addition as well.
inline f32x16 splat(float value) { return value - f32x16{}; }

inline f32x16 widen(u16x16 bits) {
#ifdef __AVX512F__  // one instruction, where the compiler's conversion takes five
  return (f32x16)((u32x16)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits) << 16);
#else
  return (f32x16)(__builtin_convertvector(bits, u32x16) << 16);
#endif
}

// Round to nearest even, as bf16(float) does; NaN stays NaN.
inline u16x16 narrow(f32x16 value) {
  const auto word = (u32x16)value;
  const u32x16 rounded = word + 0x7fffu + ((word >> 16) & 1u);
  const u32x16 kept = value != value ? word | 0x400000u : rounded;
  return __builtin_convertvector(kept >> 16, u16x16);
}

inline f32x16 load(const float* from) {
  f32x16 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline f32x16 load(const bf16* from) {
  u16x16 bits;
  std::memcpy(&bits, from, sizeof bits);
  return widen(bits);
}
inline f32x16 load(const f16* from) {
#ifdef __AVX512F__
  u16x16 bits;
  std::memcpy(&bits, from, sizeof bits);
  return (f32x16)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
#else
  f32x16 value;
  for (std::int64_t i = 0; i < lanes; ++i) value[i] = static_cast<float>(from[i]);
  return value;
#endif
}
inline void store(float* to, f32x16 value) { std::memcpy(to, &value, sizeof value); }
inline void store(bf16* to, f32x16 value) {
  const u16x16 bits = narrow(value);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
}

inline void store(f16* to, f32x16 value) {
#ifdef __AVX512F__
  const __m256i bits = _mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
#else
  for (std::int64_t i = 0; i < lanes; ++i) to[i] = f16(value[i]);
#endif
}

template <class T>
f32x16 load_some(const T* from, std::int64_t n) {
  T buffer[lanes] = {};
  std::memcpy(static_cast<void*>(buffer), from, static_cast<std::size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
void store_some(T* to, f32x16 value, std::int64_t n) {
  T buffer[lanes];
  store(buffer, value);
  std::memcpy(static_cast<void*>(to), buffer, static_cast<std::size_t>(n) * sizeof(T));
}

inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }
inline f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }
inline f32x16 minimum(f32x16 a, f32x16 b) { return a < b ? a : b; }

// a · b + c, rounded once. Written a * b + c it may be that or not, as the compiler likes.
inline f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
#ifdef __AVX512F__
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  f32x16 result;
  for (std::int64_t i = 0; i < lanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
#endif
}

// Sums in a fixed tree, so that the result does not depend on how the compiler feels about reductions.
inline float sum(f32x16 v) {
  float x[lanes];
  std::memcpy(x, &v, sizeof x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  }
  return x[0];
}
inline float largest(f32x16 v) {
  float x[lanes];
  std::memcpy(x, &v, sizeof x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
}

// e^x within a unit in the last place; 0 below -87.3, clamped above 88.3 (no infinities); NaN stays NaN.
inline f32x16 exp(f32x16 x) {
  const f32x16 clamped = minimum(splat(88.3f), maximum(splat(-87.33654f), x));  // in this order a NaN comes through
  // n = round(x / ln 2) by the magic-number trick; the remainder in two steps keeps its low bits.
  const f32x16 shifted = clamped * 1.44269504f + 12582912.0f;
  const f32x16 n = shifted - 12582912.0f;
  f32x16 r = clamped - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  f32x16 p = splat(1.9875692e-4f);
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.3334519e-3f;
  p = p * r + 4.1665795e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 5.0000001e-1f;
  p = p * r * r + r + 1.0f;
  const auto exponent = (i32x16)((((u32x16)shifted - 0x4b400000u) + 127u) << 23);
  const f32x16 result = p * (f32x16)exponent;
  return select(x < splat(-87.33654f), f32x16{}, result);
}

// tanh through exp: exact to a few units in the last place away from zero, and x itself near it.
inline f32x16 tanh(f32x16 x) {
  const f32x16 magnitude = maximum(x, -x);
  const f32x16 t = exp(magnitude * -2.0f);
  const f32x16 big = (1.0f - t) / (1.0f + t);
  const f32x16 square = x * x;
  const f32x16 small = magnitude * (1.0f + square * (-0.33333334f + square * (0.13333334f + square * -0.053968254f)));
  const f32x16 value = select(magnitude < splat(0.15f), small, big);
  return select(x < f32x16{}, -value, value);
}

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace inlay::backend::cpu
