#include "backend/cpu/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "backend/cpu/parallel.h"
#include "backend/thread_count.h"
#include "support/command.h"

namespace inlay::testing {
namespace {

using namespace backend::cpu;

TEST(BackendThreads, EveryIndexIsVisitedOnce) {
  for (const int count : {1, 2, 3, 8}) {
    const ThreadCount scope(count);
    for (const std::int64_t size : {0, 1, 2, 7, 64, 1001}) {
      for (const std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(size));
        parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_LT(begin, end);
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const auto& visit : visits) ASSERT_EQ(visit, 1) << count << " threads, " << size << " by " << grain;
      }
    }
  }
}

TEST(BackendThreads, ATeamIsAllThereAtOnceAndWaitsForItself) {
  for (const int size : {1, 2, 5}) {
    Barrier barrier(size);
    std::vector<int> seen(static_cast<std::size_t>(size));
    std::atomic<bool> early = false;
    for (int round = 1; round <= 200; ++round) {
      run_team(size, [&](int thread) {
        seen[static_cast<std::size_t>(thread)] = round;
        barrier.wait();
        for (const int other : seen) {
          if (other != round) early = true;
        }
        barrier.wait();
      });
    }
    EXPECT_FALSE(early);
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 200 * size);
  }
}

TEST(BackendThreads, InsideOfATeamEverybodyWorksAlone) {
  const ThreadCount scope(4);
  EXPECT_FALSE(in_team());
  std::atomic<int> calls = 0;
  run_team(3, [&](int) {
    EXPECT_TRUE(in_team());
    const auto self = std::this_thread::get_id();
    run_team(3, [&](int thread) {
      EXPECT_EQ(thread, 0);
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++calls;
    });
    parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(end - begin, 1000);
      ++calls;
    });
    EXPECT_TRUE(in_team());
  });
  EXPECT_FALSE(in_team());
  EXPECT_EQ(calls, 6);
}

// Every thread that computes has a team of its own: ranks in one process, and what runs beside the GPU.
TEST(BackendThreads, ThreadsDoNotDisturbEachOthersTeams) {
  const ThreadCount scope(3);
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 100 * 100);
}

TEST(BackendThreads, ANumberOfThreadsIsANumber) {
  const auto code = [](const std::string& text) {
    return inlay({"--version"}, {.environment = {{"OMP_NUM_THREADS", text}}}).code;
  };
  for (const char* good : {"1", "2", "64", "4,2", ""}) EXPECT_EQ(code(good), 0) << good;
  for (const char* bad : {"0", "-1", "many", "2x"}) EXPECT_EQ(code(bad), 2) << bad;
}

}  // namespace
}  // namespace inlay::testing
