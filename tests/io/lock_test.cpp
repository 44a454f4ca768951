#include "io/lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::TempFolder;

struct StillTaken {};
void give_up() { throw StillTaken(); }

TEST(IoTurnLock, OneAtATimeAndNothingStays) {
  const TempFolder folder;
  const auto file = folder / "lock";
  {
    const TurnLock first(file, give_up);
    EXPECT_TRUE(first.held());
    EXPECT_THROW(TurnLock(file, give_up), StillTaken);
  }
  EXPECT_EQ(folder.entry_count(), 0u);
  // The one that comes next takes its turn although the file that it was waiting for has gone.
  std::optional<TurnLock> first(std::in_place, file, give_up);
  int waits = 0;
  const TurnLock second(file, [&] {
    if (++waits == 2) first.reset();
  });
  EXPECT_TRUE(second.held());
  EXPECT_EQ(waits, 2);
  EXPECT_THROW(TurnLock(file, give_up), StillTaken);
}

TEST(IoTurnLock, EndsWithItsProcess) {
  const TempFolder folder;
  const auto file = folder / "lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const TurnLock mine(file, give_up);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  bool killed = false;
  const TurnLock next(file, [&] {
    if (!killed) ::kill(child, SIGKILL);
    killed = true;
  });
  EXPECT_TRUE(killed && next.held());
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// Without a place for the file there is no order, and no error either.
TEST(IoTurnLock, WhereThereCanBeNoneEverybodyGoesOn) {
  const TempFolder folder;
  const TurnLock nowhere(folder / "no/such/folder/lock", give_up), neither(folder / "no/such/folder/lock", give_up);
  EXPECT_FALSE(nowhere.held() || neither.held());
}

}  // namespace
}  // namespace inlay::io
