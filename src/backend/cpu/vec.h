#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/dtype.h"

// A vector register of floats at a time, in the compiler's own vector types: as wide as the instruction set that the
// including file is compiled for (sixteen floats with AVX-512, eight with AVX2, four elsewhere). Loads and stores
// convert from and to the storage dtype; *_some variants touch only the first n lanes (the rest read as zero), for
// ragged ends. For kernels only (see cmake/InlayKernels.cmake): what it means depends on who includes it.
namespace inlay::backend::cpu {

#if defined(__AVX512F__)
inline constexpr std::int64_t vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr std::int64_t vector_bytes = 32;
#else
inline constexpr std::int64_t vector_bytes = 16;
#endif
inline constexpr std::int64_t lanes = vector_bytes / 4;

using f32v = float __attribute__((vector_size(vector_bytes)));
using i32v = std::int32_t __attribute__((vector_size(vector_bytes)));
using u32v = std::uint32_t __attribute__((vector_size(vector_bytes)));
using u64v = std::uint64_t __attribute__((vector_size(vector_bytes)));      // half as many lanes
using i16v = std::int16_t __attribute__((vector_size(vector_bytes / 2)));   // as many lanes, in half a register
using u16v = std::uint16_t __attribute__((vector_size(vector_bytes / 2)));  // likewise

// {f(0), f(1), ...}: constants whose length is that of a vector.
template <class Vector, class Function>
constexpr Vector each_lane(const Function& f) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return Vector{static_cast<std::remove_cvref_t<decltype(Vector{}[0])>>(f(static_cast<std::int64_t>(i)))...};
  }
  (std::make_index_sequence<sizeof(Vector) / sizeof(Vector{}[0])>{});
}
inline constexpr auto lane_numbers = each_lane<i32v>([](std::int64_t i) { return i; });

// value − 0 is value, −0 too, and costs a broadcast alone; 0 + value would be an addition as well.
inline f32v splat(float value) { return value - f32v{}; }

inline f32v widen(u16v bits) {
#if defined(__AVX512F__)  // one instruction, where the compiler's conversion takes five
  return (f32v)((u32v)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits) << 16);
#elif defined(__AVX2__)
  return (f32v)((u32v)_mm256_cvtepu16_epi32((__m128i)bits) << 16);
#else
  return (f32v)(__builtin_convertvector(bits, u32v) << 16);
#endif
}

// Round to nearest even, as bf16(float) does; NaN stays NaN.
inline u16v narrow(f32v value) {
  const auto word = (u32v)value;
  const u32v rounded = word + 0x7fffu + ((word >> 16) & 1u);
  const u32v kept = value != value ? word | 0x400000u : rounded;
  return __builtin_convertvector(kept >> 16, u16v);
}

inline f32v load(const float* from) {
  f32v value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline f32v load(const bf16* from) {
  u16v bits;
  std::memcpy(&bits, from, sizeof bits);
  return widen(bits);
}
inline f32v load(const f16* from) {
#if defined(__AVX512F__)
  u16v bits;
  std::memcpy(&bits, from, sizeof bits);
  return (f32v)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
#elif defined(__F16C__) && defined(__AVX2__)
  return (f32v)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  f32v value;
  for (std::int64_t i = 0; i < lanes; ++i) value[i] = static_cast<float>(from[i]);
  return value;
#endif
}
inline void store(float* to, f32v value) { std::memcpy(to, &value, sizeof value); }
inline void store(bf16* to, f32v value) {
  const u16v bits = narrow(value);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
}

inline void store(f16* to, f32v value) {
#if defined(__AVX512F__)
  const __m256i bits = _mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
#elif defined(__F16C__) && defined(__AVX2__)
  const __m128i bits = _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
#else
  for (std::int64_t i = 0; i < lanes; ++i) to[i] = f16(value[i]);
#endif
}

template <class T>
f32v load_some(const T* from, std::int64_t n) {
  T buffer[lanes] = {};
  std::memcpy(static_cast<void*>(buffer), from, static_cast<std::size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
void store_some(T* to, f32v value, std::int64_t n) {
  T buffer[lanes];
  store(buffer, value);
  std::memcpy(static_cast<void*>(to), buffer, static_cast<std::size_t>(n) * sizeof(T));
}

inline f32v select(i32v mask, f32v yes, f32v no) { return mask ? yes : no; }
inline f32v maximum(f32v a, f32v b) { return a > b ? a : b; }
inline f32v minimum(f32v a, f32v b) { return a < b ? a : b; }

// a · b + c, rounded once. Written a * b + c it may be that or not, as the compiler likes.
inline f32v fused(f32v a, f32v b, f32v c) {
#if defined(__AVX512F__)
  return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  f32v result;
  for (std::int64_t i = 0; i < lanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
#endif
}

inline f32v square_root(f32v x) {
#if defined(__AVX512F__)
  return (f32v)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (f32v)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (f32v)_mm_sqrt_ps((__m128)x);
#else
  for (std::int64_t i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Sums in a fixed tree, so that the result does not depend on how the compiler feels about reductions.
inline float sum(f32v v) {
  float x[lanes];
  std::memcpy(x, &v, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  }
  return x[0];
}
inline float largest(f32v v) {
  float x[lanes];
  std::memcpy(x, &v, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
}

// e^x within a unit in the last place; 0 below -87.3, clamped above 88.3 (no infinities); NaN stays NaN.
inline f32v exp(f32v x) {
  const f32v clamped = minimum(splat(88.3f), maximum(splat(-87.33654f), x));  // in this order a NaN comes through
  // n = round(x / ln 2) by the magic-number trick; the remainder in two steps keeps its low bits.
  const f32v shifted = clamped * 1.44269504f + 12582912.0f;
  const f32v n = shifted - 12582912.0f;
  f32v r = clamped - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  f32v p = splat(1.9875692e-4f);
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.3334519e-3f;
  p = p * r + 4.1665795e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 5.0000001e-1f;
  p = p * r * r + r + 1.0f;
  const auto exponent = (i32v)((((u32v)shifted - 0x4b400000u) + 127u) << 23);
  const f32v result = p * (f32v)exponent;
  return select(x < splat(-87.33654f), f32v{}, result);
}

// tanh through exp: exact to a few units in the last place away from zero, and x itself near it.
inline f32v tanh(f32v x) {
  const f32v magnitude = maximum(x, -x);
  const f32v t = exp(magnitude * -2.0f);
  const f32v big = (1.0f - t) / (1.0f + t);
  const f32v square = x * x;
  const f32v small = magnitude * (1.0f + square * (-0.33333334f + square * (0.13333334f + square * -0.053968254f)));
  const f32v value = select(magnitude < splat(0.15f), small, big);
  return select(x < f32v{}, -value, value);
}

inline f32v sigmoid(f32v x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace inlay::backend::cpu
