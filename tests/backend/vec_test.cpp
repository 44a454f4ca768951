#include "backend/cpu/vec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/philox.h"

namespace inlay::backend::cpu {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Distance between the result and the truth, in units of the last place of the truth.
double ulps(float actual, double truth) {
  const float nearest = static_cast<float>(truth);
  const double unit = static_cast<double>(std::nextafter(std::fabs(nearest), std::numeric_limits<float>::infinity())) -
                      static_cast<double>(std::fabs(nearest));
  return std::fabs(static_cast<double>(actual) - truth) / unit;
}

// Calls f on every stride-th float from low to high, both of one sign, sixteen at a time; returns the worst error.
template <class F, class Truth>
double worst_ulps(float low, float high, std::uint32_t stride, F f, Truth truth) {
  std::uint32_t from = std::bit_cast<std::uint32_t>(low), to = std::bit_cast<std::uint32_t>(high);
  if (from > to) std::swap(from, to);
  double worst = 0;
  for (std::uint64_t at = from; at < to; at += std::uint64_t{stride} * lanes) {
    f32x16 x;
    for (int i = 0; i < lanes; ++i) {
      x[i] = from_bits(
          static_cast<std::uint32_t>(std::min<std::uint64_t>(at + static_cast<std::uint64_t>(i) * stride, to)));
    }
    const f32x16 y = f(x);
    for (int i = 0; i < lanes; ++i) worst = std::max(worst, ulps(y[i], truth(static_cast<double>(x[i]))));
  }
  return worst;
}

constexpr std::uint32_t stride = 499;  // of the 2^30 or so floats in each range

TEST(BackendVec, ExpIsWithinAUlp) {
  const auto truth = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulps(
                1e-30f, 88.2f, stride, [](f32x16 x) { return exp(x); }, truth),
            1.0);
  EXPECT_LE(worst_ulps(
                -1e-30f, -87.3f, stride, [](f32x16 x) { return exp(x); }, truth),
            1.0);
}

TEST(BackendVec, ExpAtItsEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp(splat(0.0f))[0], 1.0f);
  EXPECT_EQ(exp(splat(-0.0f))[0], 1.0f);
  EXPECT_EQ(exp(splat(-100.0f))[0], 0.0f);
  EXPECT_EQ(exp(splat(-infinity))[0], 0.0f);
  EXPECT_TRUE(std::isfinite(exp(splat(infinity))[0]));
  EXPECT_GT(exp(splat(infinity))[0], 1e38f);
}

// A NaN must reach the loss, where the run stops for it.
TEST(BackendVec, NanComesThrough) {
  const f32x16 nan = splat(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(exp(nan)[0]));
  EXPECT_TRUE(std::isnan(exp(-nan)[0]));
  EXPECT_TRUE(std::isnan(tanh(nan)[0]));
  EXPECT_TRUE(std::isnan(sigmoid(nan)[0]));
}

TEST(BackendVec, TanhAndSigmoidAreAccurate) {
  const auto tanh_truth = [](double x) { return std::tanh(x); };
  const auto sigmoid_truth = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  EXPECT_LE(worst_ulps(
                1e-30f, 100.0f, stride, [](f32x16 x) { return tanh(x); }, tanh_truth),
            3.0);
  EXPECT_LE(worst_ulps(
                -1e-30f, -100.0f, stride, [](f32x16 x) { return tanh(x); }, tanh_truth),
            3.0);
  EXPECT_LE(worst_ulps(
                1e-30f, 100.0f, stride, [](f32x16 x) { return sigmoid(x); }, sigmoid_truth),
            2.5);
  EXPECT_LE(worst_ulps(
                -1e-30f, -87.0f, stride, [](f32x16 x) { return sigmoid(x); }, sigmoid_truth),
            2.5);
  EXPECT_EQ(tanh(splat(0.0f))[0], 0.0f);
}

// The vector rounding is the scalar one: on random words, on every boundary, on NaN and infinities.
TEST(BackendVec, NarrowsAsTheScalarTypeDoes) {
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    f32x16 x;
    for (std::uint32_t i = 0; i < 16; ++i) {
      constexpr std::uint32_t lows[16] = {0,      1,      2,      0x3fff, 0x4000, 0x7ffe, 0x7fff, 0x8000,
                                          0x8001, 0x8002, 0xbfff, 0xc000, 0xfffd, 0xfffe, 0xffff, 0x1234};
      x[i] = from_bits(high << 16 | lows[i]);
    }
    bf16 stored[lanes];
    store(stored, x);
    const f32x16 back = load(stored);
    for (int i = 0; i < lanes; ++i) {
      ASSERT_EQ(stored[i].bits, bf16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(float{x[i]});
      ASSERT_EQ(std::bit_cast<std::uint32_t>(float{back[i]}), static_cast<std::uint32_t>(stored[i].bits) << 16);
    }
  }
}

template <class T>
void check_ragged_ends() {
  for (std::int64_t n = 0; n <= lanes; ++n) {
    T source[lanes], target[lanes + 1];
    for (int i = 0; i < lanes; ++i) source[i] = T(static_cast<float>(i + 1));
    for (T& element : target) element = T(-7.0f);
    const f32x16 value = load_some(source, n);
    store_some(target, splat(3.0f), n);
    for (int i = 0; i < lanes; ++i) {
      EXPECT_EQ(value[i], i < n ? static_cast<float>(i + 1) : 0.0f) << "lane " << i << " of " << n;
      EXPECT_EQ(static_cast<float>(target[i]), i < n ? 3.0f : -7.0f) << "lane " << i << " of " << n;
    }
  }
}

TEST(BackendVec, RaggedEndsTouchOnlyTheirLanes) {
  check_ragged_ends<float>();
  check_ragged_ends<bf16>();
}

TEST(BackendVec, SumAndLargest) {
  const Philox philox{5};
  for (std::uint64_t trial = 0; trial < 100; ++trial) {
    f32x16 x;
    double total = 0;
    float most = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < lanes; ++i) {
      x[i] = philox.normal(static_cast<std::uint64_t>(i), trial);
      total += static_cast<double>(x[i]);
      most = std::max(most, float{x[i]});
    }
    EXPECT_NEAR(sum(x), total, 1e-5);
    EXPECT_EQ(largest(x), most);
  }
  EXPECT_EQ(minimum(splat(1.0f), splat(2.0f))[3], 1.0f);
  EXPECT_EQ(maximum(splat(1.0f), splat(2.0f))[3], 2.0f);
}

TEST(BackendVec, FusedRoundsOnce) {
  // The product is 1 - 2^-26, which a float cannot hold.
  const float a = 1.0f + 0x1p-13f, b = 1.0f - 0x1p-13f;
  EXPECT_EQ(fused(splat(a), splat(b), splat(-1.0f))[5], -0x1p-26f);
  EXPECT_EQ(fused(splat(3.0f), splat(5.0f), splat(7.0f))[15], 22.0f);
}

}  // namespace
}  // namespace inlay::backend::cpu
