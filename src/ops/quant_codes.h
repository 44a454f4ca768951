#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/fp8.h"

// The numbers that the codes of quantised matrices stand for, and how numbers become codes: once, for both devices
// (kernels may call what is constexpr; tables they copy).
namespace inlay::ops::quant {

inline constexpr std::int64_t nf4_block = 64, nested_block = 256, mxfp4_block = 32;

// NF4 (Dettmers et al., QLoRA, 2023): quantiles of the normal distribution, scaled to [-1, 1], with a zero among them.
inline constexpr std::array<float, 16> nf4_values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The dynamic 8-bit map (Dettmers, 2015) that bitsandbytes codes the scales of NF4 blocks and the moments of AdamW by:
// decades below 1 that hold 64, 32, ..., 1 numbers, the middles of as many equal intervals, with both signs, or twice
// as many without; zero; and one. Rounded where bitsandbytes rounds: the ends of the intervals, their sum, and the
// product with the power of ten.
constexpr std::array<float, 256> make_dynamic_values(bool with_sign) {
  constexpr std::array<float, 7> decades = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> values{};
  const std::size_t zero = with_sign ? 127 : 0;
  std::size_t magnitude = 1;  // counted from the zero
  for (std::size_t decade = 0; decade < decades.size(); ++decade) {
    const int intervals = (with_sign ? 1 : 2) << decade;
    const float width = (1.0f - 0.1f) / static_cast<float>(intervals);
    const auto end = [&](int i) {  // from whichever side is nearer
      if (i < (intervals + 1) / 2) return static_cast<float>(double{0.1f} + double{width} * i);
      return static_cast<float>(1.0 - double{width} * (intervals - i));
    };
    for (int i = 0; i < intervals; ++i, ++magnitude) {
      const float value = decades[decade] * ((end(i) + end(i + 1)) / 2.0f);
      values[zero + magnitude] = value;
      if (with_sign) values[zero - magnitude] = -value;
    }
  }
  values[255] = 1.0f;
  return values;
}
inline constexpr std::array<float, 256> dynamic_values = make_dynamic_values(true);
inline constexpr std::array<float, 256> unsigned_dynamic_values = make_dynamic_values(false);

// Where the nearest of ascending numbers changes from one to the next.
template <std::size_t count>
constexpr std::array<float, count - 1> midpoints(const std::array<float, count>& values) {
  std::array<float, count - 1> result{};
  for (std::size_t i = 0; i + 1 < count; ++i) result[i] = (values[i] + values[i + 1]) / 2.0f;
  return result;
}
inline constexpr std::array<float, 15> nf4_midpoints = midpoints(nf4_values);
inline constexpr std::array<float, 255> dynamic_midpoints = midpoints(dynamic_values);
inline constexpr std::array<float, 255> unsigned_dynamic_midpoints = midpoints(unsigned_dynamic_values);

// The code of x, at most 1 in magnitude: how many of the 255 midpoints lie below it.
constexpr std::uint8_t dynamic_code(float x, const float* midpoints) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2) {
    if (code + step <= 255 && midpoints[code + step - 1] < x) code += step;
  }
  return static_cast<std::uint8_t>(code);
}

// A block's numbers are multiplied by this before they are coded. A block of zeros stays one.
constexpr float nf4_inverse(float absmax) { return 1.0f / (absmax > 1e-38f ? absmax : 1e-38f); }
constexpr float nested_inverse(float absmax) { return nf4_inverse(absmax); }

// Sign, two bits of exponent, one of mantissa: the elements of MXFP4.
constexpr float e2m1_value(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const float magnitude = exponent == 0
                              ? 0.5f * static_cast<float>(mantissa)
                              : (1.0f + 0.5f * static_cast<float>(mantissa)) * static_cast<float>(1 << (exponent - 1));
  return (code & 8) != 0 ? -magnitude : magnitude;
}
inline constexpr std::array<float, 16> e2m1_values = [] {
  std::array<float, 16> values{};
  for (int code = 0; code < 16; ++code) values[static_cast<std::size_t>(code)] = e2m1_value(code);
  return values;
}();
// To nearest, ties to the even mantissa; what is too large becomes the largest.
constexpr std::uint32_t e2m1_code(float x) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) >> 31;
  const float m = x < 0 ? -x : x;
  return sign << 3 | static_cast<std::uint32_t>((m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                                                (m >= 3.5f) + (m > 5.0f));
}

// The scale of an MXFP4 block, a power of two with a bias of 127: the exponent of its largest magnitude less that of
// the largest element, as the OCP specification has it; 255 is its NaN.
constexpr std::uint8_t e8m0_of(float absmax) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(absmax) >> 23 & 0xffu;
  if (exponent == 255) return 255;
  return static_cast<std::uint8_t>(exponent < 2 ? 0 : exponent - 2);
}
constexpr float e8m0_value(std::uint8_t scale) {
  return std::bit_cast<float>(scale == 0     ? 0x00400000u  // 2^-127 is subnormal
                              : scale == 255 ? 0x7fc00000u
                                             : std::uint32_t{scale} << 23);
}
constexpr float e8m0_inverse(std::uint8_t scale) {
  return scale == 255 ? 0.0f : std::bit_cast<float>((254u - scale) << 23);  // e8m0_of() gives no 254
}

// int8, one scale for each row: its largest magnitude, which 127 stands for. A row of zeros stays one.
inline constexpr float int8_step = 7.874015718698502e-3f;  // 1 / 127
constexpr float int8_inverse(float absmax) {
  constexpr float largest = 0x1.fffffep127f;
  const float inverse = 127.0f / absmax;
  return inverse < largest ? inverse : largest;
}

}  // namespace inlay::ops::quant
