#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/vec_probe.h"
#include "core/philox.h"

namespace inlay::testing {

extern "C" {
extern const VecProbe inlay_vec_probe_baseline;
#if defined(__x86_64__)
extern const VecProbe inlay_vec_probe_avx2, inlay_vec_probe_avx512;
#endif
}

namespace {

using backend::cpu::best_isa;
using backend::cpu::Isa;

constexpr float infinity = std::numeric_limits<float>::infinity();

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Distance between the result and the truth, in units of the last place of the truth.
double ulps(float actual, double truth) {
  const float nearest = static_cast<float>(truth);
  const double unit =
      static_cast<double>(std::nextafter(std::fabs(nearest), infinity)) - static_cast<double>(std::fabs(nearest));
  return std::fabs(static_cast<double>(actual) - truth) / unit;
}

using Function = void (*)(float* y, const float* x, std::int64_t n);

// Calls f on every stride-th float from low to high, both of one sign; returns the worst error.
template <class Truth>
double worst_ulps(float low, float high, Function f, Truth truth) {
  constexpr std::uint32_t stride = 499;  // of the 2^30 or so floats in each range
  std::uint32_t from = std::bit_cast<std::uint32_t>(low), to = std::bit_cast<std::uint32_t>(high);
  if (from > to) std::swap(from, to);
  double worst = 0;
  std::array<float, 1024> x, y;
  for (std::uint64_t at = from; at < to; at += std::uint64_t{stride} * x.size()) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = from_bits(static_cast<std::uint32_t>(std::min<std::uint64_t>(at + i * stride, to)));
    }
    f(y.data(), x.data(), std::ssize(x));
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], truth(static_cast<double>(x[i]))));
  }
  return worst;
}

// One number through a function of vectors.
float of_one(Function f, float x) {
  std::array<float, 16> in, out;
  in.fill(x);
  f(out.data(), in.data(), 16);
  return out[3];
}

// Over the instruction sets that this machine has.
class BackendVec : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
  const VecProbe& vec() const {
#if defined(__x86_64__)
    if (GetParam() == Isa::avx2) return inlay_vec_probe_avx2;
    if (GetParam() == Isa::avx512) return inlay_vec_probe_avx512;
#endif
    return inlay_vec_probe_baseline;
  }
};

TEST_P(BackendVec, ExpIsWithinAUlp) {
  const auto truth = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulps(1e-30f, 88.2f, vec().exp, truth), 1.0);
  EXPECT_LE(worst_ulps(-1e-30f, -87.3f, vec().exp, truth), 1.0);
}

TEST_P(BackendVec, ExpAtItsEnds) {
  EXPECT_EQ(of_one(vec().exp, 0.0f), 1.0f);
  EXPECT_EQ(of_one(vec().exp, -0.0f), 1.0f);
  EXPECT_EQ(of_one(vec().exp, -100.0f), 0.0f);
  EXPECT_EQ(of_one(vec().exp, -infinity), 0.0f);
  EXPECT_TRUE(std::isfinite(of_one(vec().exp, infinity)));
  EXPECT_GT(of_one(vec().exp, infinity), 1e38f);
}

// A NaN must reach the loss, where the run stops for it.
TEST_P(BackendVec, NanComesThrough) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Function f : {vec().exp, vec().tanh, vec().sigmoid, vec().square_root}) {
    EXPECT_TRUE(std::isnan(of_one(f, nan)));
    EXPECT_TRUE(std::isnan(of_one(f, -nan)));
  }
}

TEST_P(BackendVec, TanhSigmoidAndRootAreAccurate) {
  const auto tanh_truth = [](double x) { return std::tanh(x); };
  const auto sigmoid_truth = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const auto root_truth = [](double x) { return std::sqrt(x); };
  EXPECT_LE(worst_ulps(1e-30f, 100.0f, vec().tanh, tanh_truth), 3.0);
  EXPECT_LE(worst_ulps(-1e-30f, -100.0f, vec().tanh, tanh_truth), 3.0);
  EXPECT_LE(worst_ulps(1e-30f, 100.0f, vec().sigmoid, sigmoid_truth), 2.5);
  EXPECT_LE(worst_ulps(-1e-30f, -87.0f, vec().sigmoid, sigmoid_truth), 2.5);
  EXPECT_LE(worst_ulps(1e-30f, 1e30f, vec().square_root, root_truth), 0.5 + 1e-6);
  EXPECT_EQ(of_one(vec().tanh, 0.0f), 0.0f);
}

// The vector rounding is the scalar one: on random words, on every boundary, on NaN and infinities.
TEST_P(BackendVec, NarrowsAsTheScalarTypeDoes) {
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    constexpr std::array<std::uint32_t, 16> lows = {0,      1,      2,      0x3fff, 0x4000, 0x7ffe, 0x7fff, 0x8000,
                                                    0x8001, 0x8002, 0xbfff, 0xc000, 0xfffd, 0xfffe, 0xffff, 0x1234};
    std::array<float, 16> x, back;
    for (std::size_t i = 0; i < 16; ++i) x[i] = from_bits(high << 16 | lows[i]);
    std::array<bf16, 16> stored;
    vec().narrow(stored.data(), x.data(), 16);
    vec().widen(back.data(), stored.data(), 16);
    for (std::size_t i = 0; i < 16; ++i) {
      ASSERT_EQ(stored[i].bits, bf16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), static_cast<std::uint32_t>(stored[i].bits) << 16);
    }
  }
}

// Every number of fp16 there and back, and roundings between them.
TEST_P(BackendVec, HalvesAsTheScalarTypeDoes) {
  for (std::uint32_t bits = 0; bits < 0x10000u; bits += 16) {
    std::array<f16, 16> x, stored;
    std::array<float, 16> y, between;
    for (std::uint32_t i = 0; i < 16; ++i) x[i].bits = static_cast<std::uint16_t>(bits + i);
    vec().from_half(y.data(), x.data(), 16);
    for (std::size_t i = 0; i < 16; ++i) {
      const auto expected = static_cast<float>(x[i]);
      if (!std::isnan(expected)) {
        ASSERT_EQ(y[i], expected) << bits + i;
      }
      ASSERT_EQ(std::isnan(y[i]), std::isnan(expected)) << bits + i;
      between[i] = std::isnan(expected) ? 1.0f : expected * 1.0002f;
    }
    vec().to_half(stored.data(), between.data(), 16);
    for (std::size_t i = 0; i < 16; ++i) ASSERT_EQ(stored[i].bits, f16(between[i]).bits) << bits + i;
  }
}

template <class T, class Load, class Store>
void check_ragged_ends(std::int64_t lanes, Load load, Store store) {
  for (std::int64_t n = 0; n <= lanes; ++n) {
    std::array<T, 16> source;
    std::array<T, 17> target;
    std::array<float, 16> value, threes;
    for (std::size_t i = 0; i < 16; ++i) source[i] = T(static_cast<float>(i + 1));
    target.fill(T(-7.0f));
    threes.fill(3.0f);
    load(value.data(), source.data(), n);
    store(target.data(), threes.data(), n);
    for (std::int64_t i = 0; i < lanes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(value[at], i < n ? static_cast<float>(i + 1) : 0.0f) << "lane " << i << " of " << n;
      EXPECT_EQ(static_cast<float>(target[at]), i < n ? 3.0f : -7.0f) << "lane " << i << " of " << n;
    }
    EXPECT_EQ(static_cast<float>(target[static_cast<std::size_t>(lanes)]), -7.0f);
  }
}

TEST_P(BackendVec, RaggedEndsTouchOnlyTheirLanes) {
  check_ragged_ends<float>(vec().lanes, vec().load_some, vec().store_some);
  check_ragged_ends<bf16>(vec().lanes, vec().load_some_bf16, vec().store_some_bf16);
}

TEST_P(BackendVec, SumAndLargest) {
  const Philox philox{5};
  for (std::uint64_t trial = 0; trial < 100; ++trial) {
    std::array<float, 16> x, y, least, most;
    double total = 0;
    float top = -infinity;
    for (std::size_t i = 0; i < 16; ++i) {
      x[i] = philox.normal(i, trial);
      y[i] = philox.normal(i, trial + 1000);
      if (static_cast<std::int64_t>(i) >= vec().lanes) continue;
      total += static_cast<double>(x[i]);
      top = std::max(top, x[i]);
    }
    EXPECT_NEAR(vec().sum(x.data()), total, 1e-5);
    EXPECT_EQ(vec().largest(x.data()), top);
    vec().least_and_most(least.data(), most.data(), x.data(), y.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(vec().lanes); ++i) {
      EXPECT_EQ(least[i], std::min(x[i], y[i]));
      EXPECT_EQ(most[i], std::max(x[i], y[i]));
    }
  }
}

TEST_P(BackendVec, FusedRoundsOnce) {
  const auto fused = [&](float a, float b, float c) {
    std::array<float, 16> as, bs, cs, out;
    as.fill(a), bs.fill(b), cs.fill(c);
    vec().fused(out.data(), as.data(), bs.data(), cs.data(), 16);
    EXPECT_EQ(out[5], out[15]);
    return out[5];
  };
  // The product is 1 - 2^-26, which a float cannot hold.
  EXPECT_EQ(fused(1.0f + 0x1p-13f, 1.0f - 0x1p-13f, -1.0f), -0x1p-26f);
  EXPECT_EQ(fused(3.0f, 5.0f, 7.0f), 22.0f);
}

INSTANTIATE_TEST_SUITE_P(Sets, BackendVec, ::testing::Values(Isa::baseline, Isa::avx2, Isa::avx512),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
