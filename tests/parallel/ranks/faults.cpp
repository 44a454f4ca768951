#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "parallel/activity.h"
#include "parallel/processes.h"

// One rank of several goes wrong, as INLAY_TEST_RANK_FAULT says: "stop 1", "late 1", "busy 1" or "kill 1".
namespace inlay::testing {
namespace {

TEST(Fault, OfOneRank) {
  const char* const fault = std::getenv("INLAY_TEST_RANK_FAULT");
  if (fault == nullptr) GTEST_SKIP() << "for mpirun";
  const std::string_view text = fault, kind = text.substr(0, text.find(' '));
  const auto world = parallel::join_processes();
  parallel::set_watchdog_timeout(2);
  world->barrier("the beginning");
  if (world->rank() == std::atoi(text.substr(text.find(' ')).data())) {
    if (kind == "stop") ::raise(SIGSTOP);
    if (kind == "kill") ::raise(SIGKILL);
    const parallel::LongWork* const work = kind == "busy" ? new parallel::LongWork : nullptr;
    std::this_thread::sleep_for(std::chrono::seconds(kind == "busy" ? 5 : 60));
    delete work;
  }
  world->barrier("waiting for everybody");
  parallel::leave_processes();
}

}  // namespace
}  // namespace inlay::testing
