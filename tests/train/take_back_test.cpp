#include "train/take_back.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inlay::train {
namespace {

using ::testing::ElementsAre;

TEST(TrainTakeBack, AverageIsTheBaseModelAndAShareOfTheChange) {
  const std::vector<float> base = {1.0f, -2.0f, 0.0f, 0.5f}, trained = {2.0f, -2.0f, 4.0f, -1.5f};
  EXPECT_THAT(taken_back(base, trained, TakeBack::average, 0.25), ElementsAre(1.25f, -2.0f, 1.0f, 0.0f));
  EXPECT_THAT(taken_back(base, trained, TakeBack::average, 1.0), ElementsAre(2.0f, -2.0f, 4.0f, -1.5f));
}

// By hand: |W0| = 2, 1, 4, 0, 3, mean 2; |change| = 1, 2, 1, 9, 3; scores 1 - 2/2 = 0, 2 - 2·2/1 = -2, 1 - 2/4 = 0.5,
// minus infinity, 3 - 2·3/3 = 1.
TEST(TrainTakeBack, PruneKeepsTheHighestScores) {
  const std::vector<float> base = {2, -1, 4, 0, -3}, trained = {3, 1, 3, 9, 0};
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.2), ElementsAre(2, -1, 4, 0, 0));
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.4), ElementsAre(2, -1, 3, 0, 0));
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.79), ElementsAre(3, -1, 3, 0, 0)) << "rounded down";
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.8), ElementsAre(3, 1, 3, 0, 0));
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.19), ElementsAre(2, -1, 4, 0, -3)) << "nothing stays";
}

TEST(TrainTakeBack, OfEqualScoresTheFirstStay) {
  const std::vector<float> base(7, 1.0f), trained(7, 2.0f);  // all scores are 0
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.5), ElementsAre(2, 2, 2, 1, 1, 1, 1));
}

// Biases and norms may begin at 0: which of their entries stayed would be chance.
TEST(TrainTakeBack, WhereTheBaseModelHasNothingNothingStays) {
  const std::vector<float> base = {0, -0.0f, 1, 0}, trained = {1, 1, 2, 1};
  EXPECT_THAT(taken_back(base, trained, TakeBack::prune, 0.75), ElementsAre(0, 0, 2, 0));
  EXPECT_THAT(taken_back(std::vector<float>(3), std::vector<float>(3, 1.0f), TakeBack::prune, 0.9),
              ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace inlay::train
