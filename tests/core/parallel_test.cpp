#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace inlay {
namespace {

TEST(CoreParallel, EveryIndexOnceOnAnyNumberOfThreads) {
  for (const int threads : {0, 1, 3, 50}) {
    for (const std::size_t count : {0u, 1u, 7u, 1000u}) {
      std::vector<std::atomic<int>> seen(count);
      parallel_each(count, threads, [&](std::size_t i) { ++seen[i]; });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(CoreParallel, AnExceptionEndsTheWorkAndComesBack) {
  for (const int threads : {1, 4}) {
    std::atomic<int> done{0};
    const auto work = [&](std::size_t i) {
      if (i == 3) throw std::runtime_error("three");
      ++done;
    };
    EXPECT_THROW(parallel_each(100'000'000, threads, work), std::runtime_error);
    EXPECT_LT(done, 99'999'999);
  }
}

// Also in the middle of the pieces that a thread has taken at once.
TEST(CoreParallel, AnExceptionEndsTheOtherThreadsAtTheirNextPiece) {
  constexpr std::size_t count = 32 * 256, taken = 32;
  std::atomic<bool> begun{false};
  std::atomic<std::size_t> done{0};
  const auto work = [&](std::size_t i) {
    if (i == 0) {
      begun.wait(false);  // until the other thread is at work
      throw std::runtime_error("zero");
    }
    begun = true;
    begun.notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which the exception comes, sooner or later
    ++done;
  };
  EXPECT_THROW(parallel_each(count, 2, work), std::runtime_error);
  EXPECT_LT(done, taken);
}

}  // namespace
}  // namespace inlay
