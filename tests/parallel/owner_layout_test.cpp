#include "parallel/owner_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "support/device_tensors.h"

namespace inlay::testing {
namespace {

using parallel::assign_owners;
using parallel::OwnerLayout;

// The targets of a few layers of a model with grouped queries: q, k, v, o, gate, up, down.
struct Target {
  std::int64_t rows, cols;
  double cost() const { return static_cast<double>(rows * cols); }
};
std::vector<Target> model_targets(int layers, std::int64_t scale) {
  std::vector<Target> targets;
  for (int layer = 0; layer < layers; ++layer) {
    for (const Target& target : {Target{8, 8}, {2, 8}, {2, 8}, {8, 8}, {28, 8}, {28, 8}, {8, 28}}) {
      targets.push_back({target.rows * scale, target.cols * scale});
    }
  }
  return targets;
}
std::vector<double> costs_of(const std::vector<Target>& targets) {
  std::vector<double> costs;
  for (const Target& target : targets) costs.push_back(target.cost());
  return costs;
}

void check_layout(const std::vector<double>& costs, int ranks) {
  SCOPED_TRACE(fmt::format("{} targets on {} ranks", costs.size(), ranks));
  const OwnerLayout layout = assign_owners(costs, ranks);
  ASSERT_EQ(layout.owners.size(), costs.size());
  ASSERT_EQ(layout.loads.size(), static_cast<std::size_t>(ranks));
  std::vector<int> seen(costs.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<std::size_t> owned = layout.targets_of(rank);
    EXPECT_TRUE(std::is_sorted(owned.begin(), owned.end()));
    double load = 0;
    for (const std::size_t target : owned) ++seen[target], load += costs[target];
    EXPECT_DOUBLE_EQ(layout.loads[static_cast<std::size_t>(rank)], load);
  }
  EXPECT_EQ(seen, std::vector<int>(costs.size(), 1)) << "every target has one owner";
  if (costs.empty()) return;
  const double largest = *std::max_element(costs.begin(), costs.end());
  const auto [least, most] = std::minmax_element(layout.loads.begin(), layout.loads.end());
  EXPECT_LE(*most - *least, largest * (1 + 1e-12));
  EXPECT_LE(*most, std::accumulate(costs.begin(), costs.end(), 0.0) / ranks + largest);
}

TEST(ParallelOwnerLayout, GivesEveryTargetOneOwnerAndBalances) {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 64, 1000}) {
    check_layout(costs_of(model_targets(32, 512)), ranks);
    check_layout(costs_of(model_targets(1, 1)), ranks);
    check_layout({}, ranks);
    check_layout({5}, ranks);
    check_layout({0, 0, 0}, ranks);
    check_layout({1, 1, 1, 1, 1, 1, 1}, ranks);
    check_layout({1e15, 1, 2, 3, 4}, ranks);
    std::vector<double> random = random_values(101, static_cast<std::uint64_t>(ranks));
    for (double& cost : random) cost = cost * cost * 1e12;
    check_layout(random, ranks);
  }
}

TEST(ParallelOwnerLayout, PutsTheDearestFirstAndBreaksTiesInOrder) {
  // By hand: 7 → rank 0, 5 → rank 1, 4 → rank 1 (9), 4 → rank 0 (11), 3 → rank 1 (12).
  EXPECT_EQ(assign_owners(std::vector<double>{4, 7, 3, 5, 4}, 2).owners, (std::vector<int>{1, 0, 1, 1, 0}));
  EXPECT_EQ(assign_owners(std::vector<double>{2, 2, 2, 2, 2}, 3).owners, (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_THROW(assign_owners(std::vector<double>{1}, 0), InternalError);
  EXPECT_THROW(assign_owners(std::vector<double>{1, -1}, 2), InternalError);
}

}  // namespace
}  // namespace inlay::testing
