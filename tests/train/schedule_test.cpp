#include "train/schedule.h"

#include <gtest/gtest.h>

namespace inlay::train {
namespace {

TEST(TrainSchedule, WarmsUpAndFalls) {
  const Schedule cosine = {
      .decay = options::Decay::cosine, .peak = 1.0, .warmup_steps = 3, .total_steps = 13, .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(cosine.rate(0), 0.25);
  EXPECT_DOUBLE_EQ(cosine.rate(3), 1.0);
  EXPECT_NEAR(cosine.rate(8), 0.55, 1e-12);
  EXPECT_NEAR(cosine.rate(13), 0.1, 1e-12);
  const Schedule linear = {.decay = options::Decay::linear, .peak = 2.0, .warmup_steps = 0, .total_steps = 4};
  EXPECT_DOUBLE_EQ(linear.rate(0), 2.0);
  EXPECT_DOUBLE_EQ(linear.rate(3), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{.decay = options::Decay::constant, .peak = 3.0}).rate(1000), 3.0);
}

}  // namespace
}  // namespace inlay::train
