#include "core/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace inlay {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers of Philox4x32-10 that accompany the authors' library, Random123. The counter is {c0, c1, c2, c3}:
// ours is c0 + 2^32 c1, our stream c2 + 2^32 c3, and the key k0 + 2^32 k1.
TEST(CorePhilox, KnownAnswers) {
  EXPECT_EQ((Philox{0}.words(0, 0)), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ((Philox{0xffffffffffffffff}.words(0xffffffffffffffff, 0xffffffffffffffff)),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ((Philox{0x299f31d0a4093822}.words(0x85a308d3243f6a88, 0x0370734413198a2e)),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CorePhilox, EveryInputMatters) {
  std::set<Words> seen;
  for (std::uint64_t bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    seen.insert(Philox{one}.words(0, 0));
    seen.insert(Philox{0}.words(one, 0));
    seen.insert(Philox{0}.words(0, one));
  }
  EXPECT_EQ(seen.size(), 3u * 64u);
}

TEST(CorePhilox, UniformLiesInTheHalfOpenInterval) {
  EXPECT_EQ(Philox::uniform(0), 0.0f);
  EXPECT_LT(Philox::uniform(0xffffffffu), 1.0f);
  EXPECT_EQ(Philox::uniform(0x80000000u), 0.5f);
}

TEST(CorePhilox, NormalHasTheMomentsOfANormal) {
  constexpr int count = 200'000;
  const Philox philox{7};
  double sums[5] = {};
  for (int i = 0; i < count; ++i) {
    const double x = philox.normal(static_cast<std::uint64_t>(i), 3);
    ASSERT_TRUE(std::isfinite(x));
    double power = 1;
    for (int order = 1; order <= 4; ++order) sums[order] += power *= x;
  }
  // Six standard errors of each moment.
  const double error = 6 / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(sums[1] / count, 0, error);
  EXPECT_NEAR(sums[2] / count, 1, error * std::sqrt(2.0));
  EXPECT_NEAR(sums[3] / count, 0, error * std::sqrt(15.0));
  EXPECT_NEAR(sums[4] / count, 3, error * std::sqrt(96.0));
}

TEST(CorePhilox, RandomBelowIsEvenAndBelow) {
  const Philox philox{11};
  std::vector<int> hits(7);
  for (std::uint64_t i = 0; i < 70'000; ++i) {
    const std::uint64_t index = random_below(philox, i, 1, hits.size());
    ASSERT_LT(index, hits.size());
    ++hits[index];
  }
  for (const int hit : hits) EXPECT_NEAR(hit, 10'000, 600);
  EXPECT_EQ(random_below(philox, 0, 0, 1), 0u);
  // A bound above 2^32 is reached as well.
  std::uint64_t highest = 0;
  for (std::uint64_t i = 0; i < 100; ++i)
    highest = std::max(highest, random_below(philox, i, 0, std::uint64_t{1} << 40));
  EXPECT_GT(highest, std::uint64_t{1} << 38);
}

}  // namespace
}  // namespace inlay
