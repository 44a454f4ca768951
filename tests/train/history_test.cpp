#include "train/history.h"

#include <gtest/gtest.h>

namespace inlay::train {
namespace {

// The steps that leave a line, of so many that take so long each.
std::vector<int> lines_of(int steps, double seconds) {
  History history;
  std::vector<int> kept;
  for (int step = 1; step <= steps; ++step) {
    history.add(1.0, static_cast<double>(step) / steps, 1000 + seconds * step);
    if (!history.due()) continue;
    history.take();
    kept.push_back(step);
  }
  return kept;
}

TEST(TrainHistory, KeepsTheFirstStepTheLastAndEnoughBetweenThem) {
  EXPECT_EQ(lines_of(1, 1), std::vector<int>({1}));
  EXPECT_EQ(lines_of(5, 0.001), std::vector<int>({1, 2, 3, 4, 5}));
  const std::vector<int> fast = lines_of(1000, 0.001);
  EXPECT_EQ(fast.size(), 21u);
  EXPECT_EQ(fast.front(), 1);
  EXPECT_EQ(fast[1], 50);
  EXPECT_EQ(fast.back(), 1000);
  EXPECT_EQ(lines_of(1000, 30).size(), 500u + 1u);  // one per minute; and the first
}

TEST(TrainHistory, ALineHasTheMeanOfTheStepsSinceTheOneBefore) {
  History history;
  history.add(5, 0.01, 0);
  EXPECT_DOUBLE_EQ(history.take(), 5);
  for (const double loss : {4.0, 3.0, 2.0}) history.add(loss, 0.02, 1);
  EXPECT_FALSE(history.due());
  history.add(1, 0.06, 2);
  EXPECT_TRUE(history.due());
  EXPECT_DOUBLE_EQ(history.take(), 2.5);
}

}  // namespace
}  // namespace inlay::train
