#include "io/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"

namespace inlay::io {
namespace {

// The formula, from the bits: (-1)^s · 2^(e - 1) · (1 + m/2), or m/2 where e is 0; times 2^(scale - 127).
double expected(int code, int scale) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
  return std::ldexp((code & 8) != 0 ? -magnitude : magnitude, scale - 127);
}

TEST(IoMxfp4, EveryByteWithEveryScale) {
  // bf16's largest number is (2 − 2^-7) · 2^127, so 2^128 and more is infinite.
  const double limit = std::ldexp(1.0, 128);
  for (int scale = 0; scale < 255; ++scale) {
    std::vector<std::uint8_t> blocks(256), scales(16, static_cast<std::uint8_t>(scale));
    for (int byte = 0; byte < 256; ++byte) blocks[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(byte);
    std::vector<bf16> values(512);
    mxfp4_decode(values, blocks, scales);
    for (int byte = 0; byte < 256; ++byte) {
      for (const int half : {0, 1}) {
        const double want = expected(half == 0 ? byte & 15 : byte >> 4, scale);
        const auto got = static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(2 * byte + half)]));
        ASSERT_EQ(got, std::abs(want) < limit ? want : std::copysign(INFINITY, want))
            << "byte " << byte << ", half " << half << ", scale " << scale;
        ASSERT_EQ(std::signbit(got), std::signbit(want));
      }
    }
  }
}

TEST(IoMxfp4, AScaleOf255IsNotANumber) {
  std::vector<bf16> values(64);
  mxfp4_decode(values, std::vector<std::uint8_t>(32, 0x20), std::vector<std::uint8_t>{255, 127});
  for (std::size_t i = 0; i < 32; ++i) ASSERT_TRUE(std::isnan(static_cast<float>(values[i])));
  for (std::size_t i = 32; i < 64; ++i) ASSERT_EQ(static_cast<float>(values[i]), i % 2 == 0 ? 0.0f : 1.0f);
}

TEST(IoMxfp4, RejectsSizesThatDoNotGoTogether) {
  std::vector<bf16> values(32);
  EXPECT_THROW(mxfp4_decode(values, std::vector<std::uint8_t>(15), std::vector<std::uint8_t>(1)), InternalError);
  EXPECT_THROW(mxfp4_decode(values, std::vector<std::uint8_t>(32), std::vector<std::uint8_t>(2)), InternalError);
}

}  // namespace
}  // namespace inlay::io
