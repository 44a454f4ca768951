#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"

// The numbers that codes of fp8 stand for, and how numbers become codes; once, for both devices (kernels may call what
// is constexpr, or an instruction that rounds alike).
namespace inlay::fp8 {

// Sign, four bits of exponent, three of mantissa; no infinities, 0x7f is NaN.
inline constexpr float e4m3_largest = 448.0f;
constexpr float e4m3_value(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = (code & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}
// To nearest, ties to even; what is too large becomes the largest.
constexpr std::uint8_t e4m3_code(float x) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = word >> 24 & 0x80u;
  const float m = x < 0 ? -x : x;
  if (x != x) return 0x7f;
  if (!(m < e4m3_largest)) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (m < 0x1p-6f) {  // units of 2^-9: those of the last place of 2^14
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(m + 0x1p14f) - 0x46800000u));
  }
  const std::uint32_t bits = word & 0x7fffffffu;
  return static_cast<std::uint8_t>(sign | ((bits + 0x7ffffu + (bits >> 20 & 1u)) - (120u << 23)) >> 20);
}

// Sign, five bits of exponent, two of mantissa: the upper half of an fp16 number. 0x7c is infinite, 0x7f NaN.
inline constexpr float e5m2_largest = 57344.0f;
constexpr float e5m2_value(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = (code & 0x80u) << 24;
  if (magnitude >= 0x7c) return std::bit_cast<float>(sign | (magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u));
  if (magnitude < 4) {
    const float value = static_cast<float>(magnitude) * 0x1p-16f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 21) + (112u << 23)));
}
// To nearest, ties to even; what is too large becomes the largest.
constexpr std::uint8_t e5m2_code(float x) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = word >> 24 & 0x80u;
  const float m = x < 0 ? -x : x;
  if (x != x) return 0x7f;
  if (!(m < e5m2_largest)) return static_cast<std::uint8_t>(sign | 0x7bu);
  if (m < 0x1p-14f) {  // units of 2^-16: those of the last place of 2^7
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(m + 0x1p7f) - 0x43000000u));
  }
  const std::uint32_t bits = word & 0x7fffffffu;
  return static_cast<std::uint8_t>(sign | ((bits + 0xfffffu + (bits >> 21 & 1u)) - (112u << 23)) >> 21);
}

constexpr float largest_of(DType format) { return format == DType::e5m2 ? e5m2_largest : e4m3_largest; }
constexpr float value_of(DType format, std::uint8_t code) {
  return format == DType::e5m2 ? e5m2_value(code) : e4m3_value(code);
}
constexpr std::uint8_t code_of(DType format, float x) { return format == DType::e5m2 ? e5m2_code(x) : e4m3_code(x); }

// Numbers whose largest magnitude this is are multiplied by the inverse to become codes; the codes' values times the
// scale are the numbers again. What is smaller than 2⁻¹⁰⁰ throughout counts as nothing; a NaN makes all of them NaN.
constexpr float counted_largest(float magnitude) { return magnitude < 0x1p-100f ? 0x1p-100f : magnitude; }
constexpr float inverse_of(DType format, float magnitude) { return largest_of(format) / counted_largest(magnitude); }
constexpr float scale_of(DType format, float magnitude) { return counted_largest(magnitude) / largest_of(format); }

}  // namespace inlay::fp8
