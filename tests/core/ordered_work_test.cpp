#include "core/ordered_work.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace inlay {
namespace {

using std::chrono::milliseconds;

TEST(CoreOrderedWork, JobsComeBackInTheirOrder) {
  for (const int threads : {1, 3, 8}) {
    OrderedWork<int> work(threads, [](int& job, const std::atomic<bool>&) {
      if (job % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      job *= 2;
    });
    int given = 0, taken = 0;
    while (taken < 500) {
      while (given < 500 && work.bytes() < 100) work.give(given++, 10);
      EXPECT_LE(work.bytes(), 100u);
      while (!work.wait(milliseconds(100))) {
      }
      ASSERT_EQ(work.take(), 2 * taken++);
    }
    EXPECT_TRUE(work.empty());
    EXPECT_EQ(work.bytes(), 0u);
  }
}

TEST(CoreOrderedWork, WhatAJobThrowsComesWithIt) {
  OrderedWork<int> work(4, [](int& job, const std::atomic<bool>&) {
    if (job == 2) throw std::runtime_error("two");
  });
  for (int i = 0; i < 4; ++i) work.give(i, 1);
  for (int i = 0; i < 4; ++i) {
    while (!work.wait(milliseconds(100))) {
    }
    if (i == 2) {
      EXPECT_THROW(work.take(), std::runtime_error);
    } else {
      EXPECT_EQ(work.take(), i);
    }
  }
}

TEST(CoreOrderedWork, WhatNobodyTakesEndsWithIt) {
  std::atomic<int> begun = 0;
  {
    OrderedWork<int> work(2, [&](int&, const std::atomic<bool>& stopped) {
      ++begun;
      while (!stopped) std::this_thread::yield();  // as long as it is let
    });
    for (int i = 0; i < 50; ++i) work.give(i, 1);
    while (begun == 0) std::this_thread::yield();
    EXPECT_FALSE(work.wait(milliseconds(1)));
  }
  EXPECT_LE(begun, 2);
}

}  // namespace
}  // namespace inlay
