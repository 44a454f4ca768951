#include "train/saver.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "core/error.h"
#include "support/thread_ranks.h"

namespace inlay::train {
namespace {

// A gate that a test opens.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(TrainSaver, WritesBesideWhoAskedAndOneAfterTheOther) {
  Gate gate;
  std::vector<int> written;
  Saver saver;
  saver.submit(1, [&](parallel::Communicator&) {
    gate.pass();
    written.push_back(1);
  });
  saver.check();  // nothing is known yet, and nobody waits
  EXPECT_EQ(saver.step(), 1);
  gate.open();
  saver.submit(2, [&](parallel::Communicator&) {
    EXPECT_EQ(written, std::vector<int>({1}));  // it has waited for the first
    written.push_back(2);
  });
  saver.wait();
  EXPECT_EQ(written, std::vector<int>({1, 2}));
}

TEST(TrainSaver, WhatGoesWrongComesOutAtTheNextCallAndOnce) {
  Saver saver;
  saver.submit(1, [](parallel::Communicator&) { user_error("the disk is full"); });
  EXPECT_THROW(saver.submit(2, [](parallel::Communicator&) { ADD_FAILURE() << "it must not begin"; }), UserError);
  saver.wait();
  EXPECT_EQ(saver.step(), 1);
  saver.submit(3, [](parallel::Communicator&) { user_error("still full"); });
  EXPECT_THROW(saver.wait(), UserError);
  saver.check();
}

TEST(TrainSaver, WaitsWhenItGoes) {
  bool written = false;
  {
    Saver saver;
    saver.submit(1, [&](parallel::Communicator&) { written = true; });
  }
  EXPECT_TRUE(written);
}

using Ranks = std::shared_ptr<parallel::Communicator>;

// The threads of all ranks agree on this and that, while the ranks exchange something else.
TEST(TrainSaver, RanksAgreeBetweenTheirSteps) {
  testing::run_ranks(3, [](const Ranks& ranks) {
    std::vector<double> sums;
    Saver saver(ranks);
    saver.submit(1, [&](parallel::Communicator& others) {
      EXPECT_EQ(others.size(), 3);
      for (int i = 0; i < 20; ++i) {
        const double mine = others.rank() + i;
        sums.push_back(others.sum({&mine, 1}, "a sum")[0]);
      }
    });
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(ranks->from_leader(std::to_string(step), "a step"), std::to_string(step));
      saver.check();
    }
    saver.wait();
    ASSERT_EQ(sums.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(i)], 3 + 3 * i);
  });
}

TEST(TrainSaver, AnErrorOfOneRankComesOutOfAllAfterTheSameStep) {
  std::vector<int> steps(3, -1);
  std::vector<std::string> errors(3);
  testing::run_ranks(3, [&](const Ranks& ranks) {
    const auto rank = static_cast<std::size_t>(ranks->rank());
    Saver saver(ranks);
    saver.submit(1, [&](parallel::Communicator& others) {
      parallel::together(others, "writing", [&] {
        if (others.rank() == 1) user_error("the disk is full");
      });
    });
    for (int step = 0; errors[rank].empty(); ++step) {
      ranks->barrier("a step");
      try {
        saver.check();
      } catch (const UserError& error) {
        errors[rank] = error.what();
        steps[rank] = step;
      }
    }
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(errors[rank], "rank 1: the disk is full");
    EXPECT_EQ(steps[rank], steps[0]);
  }
}

// Also where nobody had expected it: outside together().
TEST(TrainSaver, AnErrorOfOneRankAloneIsSaidByAll) {
  for (const bool others_wait : {true, false}) {
    std::vector<std::string> errors(3);
    testing::run_ranks(3, [&](const Ranks& ranks) {
      Saver saver(ranks);
      saver.submit(1, [&](parallel::Communicator& others) {
        if (others.rank() == 1) user_error("a file that nobody had thought of");
        if (others_wait) others.barrier("the others");
      });
      try {
        saver.wait();
      } catch (const parallel::SharedError& error) {
        errors[static_cast<std::size_t>(ranks->rank())] = error.what();
      }
      saver.wait();  // once
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "rank 1: a file that nobody had thought of");
  }
}

// An error that all have keeps its kind: somebody treats it in their own way.
TEST(TrainSaver, AnErrorOfAllRanksStaysWhatItIs) {
  struct Kind : UserError {
    using UserError::UserError;
  };
  std::vector<std::string> errors(3);
  testing::run_ranks(3, [&](const Ranks& ranks) {
    Saver saver(ranks);
    saver.submit(1, [&](parallel::Communicator&) { throw Kind("infinity"); });
    try {
      saver.wait();
    } catch (const Kind& error) {
      errors[static_cast<std::size_t>(ranks->rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "infinity");
}

// What is no user's mistake ends one thread. The others do not wait for it, and leave it to that rank to say so.
TEST(TrainSaver, WhereOneRankFailsTheOthersDoNotWait) {
  std::vector<std::string> errors(3);
  testing::run_ranks(3, [&](const Ranks& ranks) {
    std::string& error = errors[static_cast<std::size_t>(ranks->rank())];
    Saver saver(ranks);
    saver.submit(1, [&](parallel::Communicator& others) {
      if (others.rank() == 2) throw InternalError("a defect");
      others.barrier("the others");
    });
    try {
      saver.wait();
    } catch (const InternalError& mine) {
      error = mine.what();
    } catch (const parallel::FailedElsewhere&) {
      error = "elsewhere";
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>({"elsewhere", "elsewhere", "a defect"}));
}

// Nobody carries out what the threads ask for any more: they end all the same.
TEST(TrainSaver, LeavesWhatRanksHaveNotAgreedOnWhenItGoes) {
  testing::run_ranks(2, [](const Ranks& ranks) {
    bool agreed = false;
    {
      Saver saver(ranks);
      saver.submit(1, [&](parallel::Communicator& others) {
        others.barrier("an agreement");
        agreed = true;
      });
    }
    EXPECT_FALSE(agreed);
    ranks->barrier("the end");
  });
}

}  // namespace
}  // namespace inlay::train
