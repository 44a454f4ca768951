#include "parallel/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace inlay::parallel {

namespace {

struct Head {
  std::int64_t begun, waiting;
  double waited;
  std::uint64_t long_work, what_bytes;
};

// "rank 1 on a, rank 2 on b and 5 more"
std::string listed(const std::vector<std::size_t>& ranks, std::span<const std::string> names) {
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", names[ranks[i]]);
  }
  if (ranks.size() > most) text += fmt::format(" and {} more", ranks.size() - most);
  return text;
}

const char* has(const std::vector<std::size_t>& ranks) { return ranks.size() == 1 ? "has" : "have"; }

// What the rank that has waited longest waits in.
const RankSeen* longest_wait(std::span<const RankSeen> ranks) {
  const auto longest = std::max_element(
      ranks.begin(), ranks.end(), [](const RankSeen& a, const RankSeen& b) { return a.pulse.waited < b.pulse.waited; });
  return longest == ranks.end() || longest->pulse.now.waiting == 0 ? nullptr : &*longest;
}

}  // namespace

std::string to_bytes(const Pulse& pulse) {
  const Activity::Now& now = pulse.now;
  const Head head{now.begun, now.waiting, pulse.waited, now.long_work ? 1U : 0U, now.what.size()};
  std::string bytes(sizeof head, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes + now.what + now.trouble;
}

Pulse pulse_of(const std::string& bytes) {
  Head head{};
  INLAY_ASSERT(bytes.size() >= sizeof head, "a pulse of {} bytes", bytes.size());
  std::memcpy(&head, bytes.data(), sizeof head);
  return {{head.begun, head.waiting, bytes.substr(sizeof head, head.what_bytes), head.long_work != 0,
           bytes.substr(sizeof head + head.what_bytes)},
          head.waited};
}

std::optional<std::string> verdict(std::span<const RankSeen> ranks, std::span<const std::string> names,
                                   double timeout) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& trouble = ranks[rank].pulse.now.trouble;
    if (!trouble.empty()) return fmt::format("{}: {}", names[rank], trouble);
  }
  const RankSeen* const waiting = longest_wait(ranks);
  std::vector<std::size_t> silent, missing;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].silent > timeout) silent.push_back(rank);
  }
  if (!silent.empty()) {
    return fmt::format("{} {} not been heard from for {:.0f} s (stopped, or the host is down){}", listed(silent, names),
                       has(silent), timeout,
                       waiting == nullptr ? "" : fmt::format("; others wait in \"{}\"", waiting->pulse.now.what));
  }
  if (waiting == nullptr || waiting->pulse.waited <= timeout) return std::nullopt;
  bool patient = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].pulse.now.begun >= waiting->pulse.now.waiting) continue;
    missing.push_back(rank);
    patient = patient || ranks[rank].pulse.now.long_work;
  }
  if (patient) return std::nullopt;  // its time will come
  const std::string where = fmt::format("\"{}\" for {:.0f} s", waiting->pulse.now.what, waiting->pulse.waited);
  if (missing.empty()) return fmt::format("all ranks have been in {}, and it does not end: a network fault?", where);
  return fmt::format("others have waited in {}, and {} {} not reached it", where, listed(missing, names), has(missing));
}

Watchdog::Watchdog(std::unique_ptr<Transport> transport, std::vector<std::string> names, double timeout)
    : transport_(std::move(transport)), names_(std::move(names)), timeout_(timeout) {
  seen_.resize(transport_->rank() == 0 ? static_cast<std::size_t>(transport_->size()) : 1);
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const double period = std::clamp(timeout_ / 10, 0.02, 1.0);
    if (wake_.wait_for(lock, std::chrono::duration<double>(period), [this] { return stop_; })) return;
    lock.unlock();
    tick(period);
    lock.lock();
  }
}

Pulse Watchdog::own_pulse(double seconds) {
  Pulse pulse{activity().now()};
  waited_ = pulse.now.waiting != 0 && pulse.now.waiting == waits_in_ ? waited_ + seconds : 0;
  waits_in_ = pulse.now.waiting;
  pulse.waited = waited_;
  return pulse;
}

void Watchdog::tick(double seconds) {
  for (RankSeen& rank : seen_) rank.silent += seconds;
  int from = 0;
  for (std::string message; transport_->take(from, message);) {
    seen_[static_cast<std::size_t>(from)] = {pulse_of(message), 0};
  }
  const Pulse own = own_pulse(seconds);
  const std::string bytes = to_bytes(own);
  if (transport_->rank() != 0) {
    transport_->post(0, bytes);
    if (seen_[0].silent <= timeout_) return;
    // Every rank finds this out at about the same time; the first one that says so ends all.
    std::this_thread::sleep_for(std::chrono::duration<double>(0.2 * (transport_->rank() - 1)));
    seen_[0].pulse = own;  // for what this rank waits in
    if (const auto why = verdict(seen_, names_, timeout_)) end_all(*why);
    return;
  }
  seen_[0] = {own, 0};
  for (int rank = 1; rank < transport_->size(); ++rank) transport_->post(rank, bytes);
  if (const auto why = verdict(seen_, names_, timeout_)) end_all(*why);
}

void Watchdog::end_all(const std::string& why) {
  fmt::print(stderr, "inlay: {}; all processes end (parallel.timeout is {:g} s)\n", why, timeout_.load());
  std::fflush(stderr);
  transport_->abort(1);
  std::_Exit(1);
}

}  // namespace inlay::parallel
