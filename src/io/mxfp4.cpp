#include "io/mxfp4.h"

#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace inlay::io {

namespace {

// Both numbers of every byte, so that decoding is a look-up and a product.
struct Pair {
  float low, high;
};

constexpr std::array<Pair, 256> pairs = [] {
  std::array<Pair, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    table[byte] = {mxfp4_values[byte & 15], mxfp4_values[byte >> 4]};
  }
  return table;
}();

// No product has more than two significant bits, so cutting off the lower half of an fp32 number loses nothing.
bf16 upper_half(float value) {
  bf16 result;
  result.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  return result;
}

}  // namespace

float mxfp4_scale(std::uint8_t scale) {
  return scale == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, scale - 127);
}

void mxfp4_decode(std::span<bf16> to, std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales) {
  INLAY_ASSERT(to.size() == scales.size() * mxfp4_block && blocks.size() == scales.size() * mxfp4_block_bytes,
               "mxfp4: {} numbers from {} bytes with {} scales", to.size(), blocks.size(), scales.size());
  bf16* at = to.data();
  const std::uint8_t* byte = blocks.data();
  for (const std::uint8_t scale : scales) {
    const float factor = mxfp4_scale(scale);
    for (std::int64_t i = 0; i < mxfp4_block_bytes; ++i, at += 2, ++byte) {
      const Pair pair = pairs[*byte];
      at[0] = upper_half(pair.low * factor);
      at[1] = upper_half(pair.high * factor);
    }
  }
}

}  // namespace inlay::io
