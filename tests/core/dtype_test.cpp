#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/philox.h"

namespace inlay {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

float bf16_value(std::uint32_t pattern) { return from_bits(pattern << 16); }

// The definition of rounding to nearest, ties to even, in exact double arithmetic: of the two neighbours take the
// nearer.
std::uint16_t reference_bf16(float value) {
  const std::uint32_t lower = to_bits(value) >> 16, upper = lower + 1;  // towards zero, away from it
  const double low = std::fabs(static_cast<double>(bf16_value(lower)));
  // One past the largest finite pattern stands for 2^128 when it comes to distances.
  const double high = (upper & 0x7fffu) == 0x7f80u ? 0x1p128 : std::fabs(static_cast<double>(bf16_value(upper)));
  const double magnitude = std::fabs(static_cast<double>(value));
  const double down = magnitude - low, up = high - magnitude;
  const bool take_upper = up < down || (up == down && (upper & 1u) == 0);
  return static_cast<std::uint16_t>(take_upper ? upper : lower);
}

// The compiler's own half precision.
#if defined(__aarch64__)
using Half = __fp16;  // C++ has no _Float16 on ARM before GCC 13
#else
using Half = _Float16;
#endif

std::uint16_t reference_f16(float value) { return std::bit_cast<std::uint16_t>(static_cast<Half>(value)); }

template <class Storage>
std::uint16_t rounded_bits(float value) {
  return Storage(value).bits;
}

template <class Storage>
float widened(std::uint32_t pattern) {
  Storage storage;
  storage.bits = static_cast<std::uint16_t>(pattern);
  return static_cast<float>(storage);
}

TEST(CoreDtype, EveryBf16PatternSurvivesTheRoundTrip) {
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const float value = widened<bf16>(pattern);
    ASSERT_EQ(to_bits(value), pattern << 16);
    const std::uint32_t back = bf16(value).bits;
    if (std::isnan(value)) {
      ASSERT_EQ(back, pattern | 0x40u) << "a NaN stays one, made quiet";
    } else {
      ASSERT_EQ(back, pattern);
    }
  }
}

TEST(CoreDtype, EveryF16PatternSurvivesTheRoundTrip) {
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const float value = widened<f16>(pattern);
    const std::uint32_t back = f16(value).bits;
    if ((pattern & 0x7fffu) > 0x7c00u) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_EQ(back & 0x7e00u, 0x7e00u) << pattern;
      ASSERT_EQ(back & 0x8000u, pattern & 0x8000u) << pattern;
    } else {
      ASSERT_EQ(to_bits(value), to_bits(static_cast<float>(std::bit_cast<Half>(static_cast<std::uint16_t>(pattern)))));
      ASSERT_EQ(back, pattern);
    }
  }
}

// Around every representable value: itself, the middle to the next one, and one float to either side of both.
TEST(CoreDtype, RoundsToNearestEvenAtEveryBoundary) {
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    if ((pattern & 0x7fffu) < 0x7f80u) {
      for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const float value = from_bits(pattern << 16 | low);
        ASSERT_EQ(bf16(value).bits, reference_bf16(value)) << "bf16 of " << value;
      }
    }
    if ((pattern & 0x7fffu) < 0x7c00u) {
      const float here = widened<f16>(pattern);
      // Past the largest finite half lies 65536, as far as rounding is concerned.
      const float next = (pattern & 0x7fffu) == 0x7bffu ? std::copysign(65536.0f, here) : widened<f16>(pattern + 1);
      for (const float centre : {here, here + (next - here) / 2}) {
        for (const float value : {std::nextafter(centre, -infinity), centre, std::nextafter(centre, infinity)}) {
          ASSERT_EQ(f16(value).bits, reference_f16(value)) << "f16 of " << value;
        }
      }
    }
  }
}

TEST(CoreDtype, RoundsRandomNumbersToNearestEven) {
  const Philox philox{2024};
  for (std::uint64_t i = 0; i < 250'000; ++i) {
    for (const std::uint32_t word : philox.words(i)) {
      const float value = from_bits(word);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(bf16(value).bits, reference_bf16(value)) << value;
      ASSERT_EQ(f16(value).bits, reference_f16(value)) << value;
      // Most random patterns are far outside half's range; bring the exponent into it and somewhat beyond.
      const float near_one =
          std::ldexp(from_bits((word & 0x807fffffu) | 0x3f800000u), static_cast<int>(word >> 23 & 63) - 32);
      ASSERT_EQ(f16(near_one).bits, reference_f16(near_one)) << near_one;
    }
  }
}

TEST(CoreDtype, InfinitiesAndOverflow) {
  EXPECT_EQ(rounded_bits<bf16>(infinity), 0x7f80u);
  EXPECT_EQ(rounded_bits<bf16>(-infinity), 0xff80u);
  EXPECT_EQ(rounded_bits<bf16>(std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(rounded_bits<f16>(infinity), 0x7c00u);
  EXPECT_EQ(rounded_bits<f16>(-infinity), 0xfc00u);
  EXPECT_EQ(rounded_bits<f16>(65519.996f), 0x7bffu) << "still rounds down to 65504";
  EXPECT_EQ(rounded_bits<f16>(-65520.0f), 0xfc00u) << "a tie, and even is infinity";
  EXPECT_EQ(rounded_bits<f16>(0x1p-25f), 0u) << "a tie, and even is zero";
  EXPECT_EQ(rounded_bits<f16>(-0x1.000002p-25f), 0x8001u);
}

TEST(CoreDtype, EveryKindOfNanStaysOne) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f80ffffu}) {
    const float nan = from_bits(bits);
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(f16(nan)))) << std::hex << bits;
  }
}

TEST(CoreDtype, NamesAndSizes) {
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(dtype_of<f16>(), DType::f16);
  EXPECT_TRUE(is_floating(DType::f16));
  EXPECT_FALSE(is_floating(DType::i32));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    EXPECT_EQ(parse_floating_dtype(name_of(dtype)), dtype);
  EXPECT_EQ(parse_floating_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_floating_dtype("float16"), DType::f16);
  EXPECT_EQ(parse_floating_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_floating_dtype("int8"), std::nullopt);
  EXPECT_EQ(parse_floating_dtype(""), std::nullopt);
}

}  // namespace
}  // namespace inlay
