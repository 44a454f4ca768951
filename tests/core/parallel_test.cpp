#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
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

}  // namespace
}  // namespace inlay
