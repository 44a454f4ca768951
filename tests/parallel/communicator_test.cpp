#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "parallel/activity.h"
#include "support/thread_ranks.h"

namespace inlay::parallel {
namespace {

TEST(ParallelCommunicator, TheErrorOfOneRankIsThatOfAll) {
  std::vector<std::string> errors(3);
  testing::run_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) {
    try {
      together(*ranks, "saving", [&] {
        if (ranks->rank() == 1) throw UserError("the disk is full");
      });
    } catch (const UserError& error) {
      errors[static_cast<std::size_t>(ranks->rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 1: the disk is full");
}

// The watchdog lets others wait for what a rank does by itself: reading data, finding directions, writing files.
TEST(ParallelCommunicator, WhatRanksDoTogetherMayTakeItsTime) {
  testing::run_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    ranks->barrier("before");
    EXPECT_FALSE(activity().now().long_work);
    ranks->barrier("both have looked");
    together(*ranks, "working", [&] { EXPECT_TRUE(activity().now().long_work); });
    ranks->barrier("after");
    EXPECT_FALSE(activity().now().long_work);
    ranks->barrier("both have looked");
  });
}

TEST(ParallelCommunicator, SumsAreInTheOrderOfTheRanks) {
  // 1 + 1e-17 is 1, so only the order given can come to this.
  const double values[] = {1.0, 1e-17, -1.0, 1e-17};
  testing::run_ranks(4, [&](const std::shared_ptr<Communicator>& ranks) {
    const double mine = values[ranks->rank()];
    EXPECT_EQ(ranks->sum({&mine, 1}, "test")[0], 1e-17);
    EXPECT_EQ(ranks->from_leader(ranks->leads() ? "a word" : "another", "test"), "a word");
    EXPECT_TRUE(ranks->any(ranks->rank() == 2, "test"));
    EXPECT_FALSE(ranks->any(false, "test"));
  });
}

TEST(ParallelCommunicator, APlanCountsWhatARankSends) {
  Exec exec = Exec::planner(Device::cpu);
  const View whole = exec.arena().keep(MemoryClass::weights, "w", DType::f32, {8, 3});
  const RowCut cut = RowCut::even(8, 4);
  const auto ranks = planned_process(1, 4);
  const CutTensor tensor{whole, whole.slice_rows(2, 4), &cut};
  const double bytes = 8 * 3 * 4;
  ranks->all_gather(exec, {&tensor, 1}, "test");
  EXPECT_EQ(exec.cost().total().network, bytes * 3 / 4);
  ranks->reduce_scatter(exec, {&tensor, 1}, "test");
  EXPECT_EQ(exec.cost().total().network, bytes * 6 / 4);
  ranks->all_reduce(exec, {&whole, 1}, "test");
  EXPECT_EQ(exec.cost().total().network, bytes * 12 / 4);
}

}  // namespace
}  // namespace inlay::parallel
