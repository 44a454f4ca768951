#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "parallel/activity.h"
#include "parallel/transport.h"

namespace inlay::parallel {

// What a rank says of itself, again and again.
struct Pulse {
  Activity::Now now;
  double waited = 0;  // seconds in the exchange that it waits in
};
std::string to_bytes(const Pulse& pulse);
Pulse pulse_of(const std::string& bytes);

struct RankSeen {
  Pulse pulse;        // its last
  double silent = 0;  // seconds since
};

// Why the run cannot go on, with the ranks to blame and what the others wait in; nothing while it can.
std::optional<std::string> verdict(std::span<const RankSeen> ranks, std::span<const std::string> names, double timeout);

// A thread per rank that tells rank 0 how it stands and hears from it. Rank 0 finds who has stopped, and who does not
// come to where the others wait; the others find a rank 0 that has stopped. Whoever finds it ends all processes. Time
// in which this process itself did not run (a suspended job) does not count.
class Watchdog {
 public:
  Watchdog(std::unique_ptr<Transport> transport, std::vector<std::string> names, double timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void set_timeout(double seconds) { timeout_ = seconds; }

 private:
  void watch();
  void tick(double seconds);
  Pulse own_pulse(double seconds);
  [[noreturn]] void end_all(const std::string& why);

  std::unique_ptr<Transport> transport_;
  std::vector<std::string> names_;
  std::atomic<double> timeout_;
  std::vector<RankSeen> seen_;  // on rank 0 of all, elsewhere of rank 0 alone
  std::int64_t waits_in_ = 0;
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace inlay::parallel
