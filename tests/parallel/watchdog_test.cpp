#include "parallel/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "parallel/activity.h"
#include "support/command.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using parallel::Pulse;
using parallel::RankSeen;
using ::testing::HasSubstr;

const std::vector<std::string> names = {"rank 0 on a", "rank 1 on a", "rank 2 on b"};

RankSeen waiting(std::int64_t in, const std::string& what, double seconds) {
  return {{{.begun = in, .waiting = in, .what = what}, seconds}, 0};
}
RankSeen working(std::int64_t begun, bool long_work = false) {
  return {{{.begun = begun, .long_work = long_work}, 0}, 0};
}

std::string verdict_of(const std::vector<RankSeen>& ranks) {
  return parallel::verdict(ranks, names, 10).value_or("go on");
}

TEST(ParallelWatchdog, LetsARunGoOn) {
  EXPECT_EQ(verdict_of({working(3), working(4), working(4)}), "go on");
  EXPECT_EQ(verdict_of({waiting(5, "sums", 9), working(4), waiting(5, "sums", 3)}), "go on");
  EXPECT_EQ(verdict_of({waiting(5, "data", 1000), working(4, true), waiting(5, "data", 1000)}), "go on")
      << "what takes long by its nature may";
}

TEST(ParallelWatchdog, NamesWhoIsMissingAndWhere) {
  EXPECT_EQ(verdict_of({waiting(5, "sums of layer 3", 11), working(4), waiting(5, "sums of layer 3", 12)}),
            "others have waited in \"sums of layer 3\" for 12 s, and rank 1 on a has not reached it");
  EXPECT_EQ(verdict_of({working(4), working(4), waiting(5, "sums", 12)}),
            "others have waited in \"sums\" for 12 s, and rank 0 on a, rank 1 on a have not reached it");
  // One that waits in an earlier exchange has not come to the later one either; it waits for those who went past.
  EXPECT_EQ(verdict_of({waiting(5, "sums", 11), waiting(5, "sums", 11), waiting(5, "sums", 11)}),
            "all ranks have been in \"sums\" for 11 s, and it does not end: a network fault?");
}

TEST(ParallelWatchdog, NamesWhoIsSilentFirst) {
  std::vector<RankSeen> ranks = {waiting(5, "sums", 11), waiting(5, "sums", 11), working(4, true)};
  ranks[2].silent = 10.5;
  EXPECT_EQ(verdict_of(ranks),
            "rank 2 on b has not been heard from for 10 s (stopped, or the host is down); others wait in \"sums\"");
}

TEST(ParallelWatchdog, PassesOnWhatALibrarySays) {
  std::vector<RankSeen> ranks = {working(1), working(1), working(1)};
  ranks[1].pulse.now.trouble = "NCCL error 6 (remote process exited)";
  EXPECT_EQ(verdict_of(ranks), "rank 1 on a: NCCL error 6 (remote process exited)");
}

TEST(ParallelWatchdog, APulseArrivesAsItWasSent) {
  const Pulse sent = {{.begun = 7, .waiting = 5, .what = "sums of layer 3", .long_work = true, .trouble = "a fault"},
                      2.5};
  const Pulse come = parallel::pulse_of(parallel::to_bytes(sent));
  EXPECT_EQ(come.now.begun, 7);
  EXPECT_EQ(come.now.waiting, 5);
  EXPECT_EQ(come.now.what, "sums of layer 3");
  EXPECT_TRUE(come.now.long_work);
  EXPECT_EQ(come.now.trouble, "a fault");
  EXPECT_EQ(come.waited, 2.5);
}

CommandResult with_fault(const std::string& fault) {
  return mpirun(3, {(program().parent_path() / "inlay_ranks").string(), "--gtest_filter=Fault.*", "--gtest_brief=1"},
                {.environment = {{"INLAY_TEST_RANK_FAULT", fault}}});
}

// A real process is stopped, killed, or too late; mpirun comes back, and the right rank is named.
TEST(ParallelWatchdog, EndsARunWhoseRankIsStoppedKilledOrLate) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  for (const char* rank : {"0", "1"}) {
    const CommandResult stopped = with_fault(std::string("stop ") + rank);
    EXPECT_NE(stopped.code, 0);
    EXPECT_THAT(stopped.err, HasSubstr(std::string("inlay: rank ") + rank + " on "));
    EXPECT_THAT(stopped.err, HasSubstr("has not been heard from for 2 s"));
    EXPECT_THAT(stopped.err, HasSubstr("others wait in \"waiting for everybody\""));
  }
  const CommandResult late = with_fault("late 2");
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("others have waited in \"waiting for everybody\" for 2 s, and rank 2 on "));
  const CommandResult killed = with_fault("kill 1");
  EXPECT_NE(killed.code, 0);
  EXPECT_THAT(killed.err, HasSubstr("process rank 1"));
  const CommandResult busy = with_fault("busy 1");
  EXPECT_EQ(busy.code, 0) << busy.err;
}

// Of what a thread beside does the one that computes knows nothing: it must be found when it hangs.
TEST(ParallelWatchdog, IsNotKeptWaitingByAThreadBeside) {
  bool beside = true, after = false;
  std::thread([&] {
    {
      const parallel::WorkBeside work;
      const parallel::LongWork patience;
      beside = parallel::activity().now().long_work;
    }
    const parallel::LongWork patience;
    after = parallel::activity().now().long_work;
  }).join();
  EXPECT_FALSE(beside);
  EXPECT_TRUE(after);
  EXPECT_FALSE(parallel::activity().now().long_work);
}

}  // namespace
}  // namespace inlay::testing
