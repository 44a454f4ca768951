#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/dtype.h"

// MXFP4, the 4-bit format of the OCP Microscaling specification, as GPT-OSS checkpoints store their experts: 32 numbers
// are sixteen bytes, two numbers a byte with the lower half first, and one byte that scales them by a power of two.
namespace inlay::io {

inline constexpr std::int64_t mxfp4_block = 32, mxfp4_block_bytes = mxfp4_block / 2;

// What the sixteen codes stand for: sign, two bits of exponent, one of mantissa.
inline constexpr std::array<float, 16> mxfp4_values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(scale - 127). 255 is the specification's NaN, and so is every number of such a block.
float mxfp4_scale(std::uint8_t scale);

// to[i] = value · scale for whole blocks: blocks holds sixteen bytes for each of the scales. bf16 holds every result
// exactly; what exceeds its range (a scale of 253 or more) becomes infinite, as in fp32.
void mxfp4_decode(std::span<bf16> to, std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales);

}  // namespace inlay::io
