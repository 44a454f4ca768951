#include "gguf/numbers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "core/error.h"
#include "io/mxfp4.h"

namespace inlay::gguf {

namespace {

constexpr std::int64_t q8_0_bytes = 2 + block, mxfp4_bytes = 1 + block / 2;

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// A scale in fp16, and 32 integers. Halves round away from zero, and the scale is not yet rounded when they are made.
void encode_q8_0(std::byte* to, const float* values) {
  float largest = 0;
  for (std::int64_t i = 0; i < block; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
  put(to, f16(scale));
  for (std::int64_t i = 0; i < block; ++i) {
    put(to + 2 + i, static_cast<std::int8_t>(std::round(values[i] * inverse)));
  }
}

// 2^(exponent - 128): half of what the exponent says, since the values are kept doubled, as integers.
float half_scale(std::uint8_t exponent) {
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23;
  return std::bit_cast<float>(bits);
}

void encode_mxfp4(std::byte* to, const float* values) {
  float largest = 0;
  for (std::int64_t i = 0; i < block; ++i) largest = std::max(largest, std::abs(values[i]));
  // As ggml has it, with a logarithm in fp32: just below a power of two it may round up to it.
  const float exponent = largest > 0 ? std::floor(std::log2(largest)) - 2 + 127 : 0.0f;
  const auto code = static_cast<std::uint8_t>(std::clamp(exponent, 0.0f, 254.0f));
  const float scale = half_scale(code);
  put(to, code);
  const auto nearest = [&](float value) {
    std::uint8_t best = 0;
    float error = 0;
    for (std::size_t i = 0; i < io::mxfp4_values.size(); ++i) {
      const float distance = std::abs(scale * (2 * io::mxfp4_values[i]) - value);
      if (i == 0 || distance < error) best = static_cast<std::uint8_t>(i), error = distance;
    }
    return best;
  };
  for (std::int64_t i = 0; i < block / 2; ++i) {
    put(to + 1 + i, static_cast<std::uint8_t>(nearest(values[i]) | nearest(values[i + block / 2]) << 4));
  }
}

}  // namespace

std::string_view name_of(NumberType type) {
  switch (type) {
    case NumberType::f32: return "f32";
    case NumberType::f16: return "f16";
    case NumberType::q8_0: return "q8_0";
    case NumberType::bf16: return "bf16";
    case NumberType::mxfp4: return "mxfp4";
  }
  return "?";
}

bool has_blocks(NumberType type) { return type == NumberType::q8_0 || type == NumberType::mxfp4; }

std::uint64_t bytes_of(NumberType type, std::int64_t count) {
  INLAY_ASSERT(!has_blocks(type) || count % block == 0, "{} numbers in {}", count, name_of(type));
  const auto n = static_cast<std::uint64_t>(count);
  switch (type) {
    case NumberType::f32: return 4 * n;
    case NumberType::f16:
    case NumberType::bf16: return 2 * n;
    case NumberType::q8_0: return n / block * q8_0_bytes;
    case NumberType::mxfp4: return n / block * mxfp4_bytes;
  }
  return 0;
}

void encode(NumberType type, std::span<std::byte> to, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  INLAY_ASSERT(to.size() == bytes_of(type, count), "{} numbers in {} bytes of {}", count, to.size(), name_of(type));
  std::byte* out = to.data();
  switch (type) {
    case NumberType::f32: std::memcpy(out, values.data(), values.size_bytes()); return;
    case NumberType::f16:
      for (const float value : values) put(out, f16(value)), out += 2;
      return;
    case NumberType::bf16:
      for (const float value : values) put(out, bf16(value)), out += 2;
      return;
    case NumberType::q8_0:
      for (std::int64_t i = 0; i < count; i += block, out += q8_0_bytes) encode_q8_0(out, values.data() + i);
      return;
    case NumberType::mxfp4:
      for (std::int64_t i = 0; i < count; i += block, out += mxfp4_bytes) encode_mxfp4(out, values.data() + i);
      return;
  }
}

// There two neighbours share a byte; here numbers that are half a block apart do.
void repack_mxfp4(std::span<std::byte> to, std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales) {
  INLAY_ASSERT(blocks.size() == scales.size() * io::mxfp4_block_bytes && to.size() == scales.size() * mxfp4_bytes,
               "{} bytes of {} blocks", blocks.size(), scales.size());
  for (std::size_t b = 0; b < scales.size(); ++b) {
    std::byte* out = to.data() + b * mxfp4_bytes;
    std::array<std::uint8_t, block> codes{};
    for (std::size_t i = 0; i < block / 2; ++i) {
      const std::uint8_t byte = blocks[b * (block / 2) + i];
      codes[2 * i] = byte & 15, codes[2 * i + 1] = byte >> 4;
    }
    put(out, scales[b]);
    for (std::size_t i = 0; i < block / 2; ++i) {
      put(out + 1 + i, static_cast<std::uint8_t>(codes[i] | codes[i + block / 2] << 4));
    }
  }
}

}  // namespace inlay::gguf
