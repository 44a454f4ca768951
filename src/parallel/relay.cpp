#include "parallel/relay.h"

#include <algorithm>
#include <chrono>

#include "parallel/activity.h"

namespace inlay::parallel {

Relay::Relay(std::shared_ptr<Communicator> ranks)
    : Communicator(ranks->rank(), ranks->size()), ranks_(std::move(ranks)) {}

void Relay::expect() {
  const std::lock_guard lock(mutex_);
  running_ = true;
  abandoned_ = false;
}

void Relay::run(const std::function<void(Communicator&)>& work) {
  struct End {
    Relay& relay;
    ~End() {
      const std::lock_guard lock(relay.mutex_);
      relay.running_ = false;
      relay.changed_.notify_all();
    }
  } end{*this};
  const WorkBeside beside;
  work(*this);
}

std::vector<std::string> Relay::exchange(std::string_view mine, std::string_view what) {
  Request request{std::string(mine), std::string(what), {}};
  std::unique_lock lock(mutex_);
  request_ = &request;
  changed_.notify_all();
  changed_.wait(lock, [&] { return request.answer || abandoned_; });
  request_ = nullptr;
  if (!request.answer) throw InternalError(fmt::format("{}: the run has already ended", what));
  return *std::move(request.answer);
}

std::shared_ptr<Communicator> Relay::split(int) { refuse("dividing the ranks"); }

void Relay::refuse(std::string_view what) { throw InternalError(fmt::format("{}: not on a thread beside", what)); }

// An answer that was not fetched yet is no question.
Relay::State Relay::state() const {
  if (!running_) return State::ended;
  return request_ != nullptr && !request_->answer ? State::asking : State::working;
}

Relay::Served Relay::serve_once(State mine) {
  const char letter = static_cast<char>(mine);
  const std::vector<std::string> states = ranks_->exchange({&letter, 1}, "how far the threads beside are");
  const auto all = [&](State state) {
    return std::ranges::all_of(states, [&](const std::string& s) { return s[0] == static_cast<char>(state); });
  };
  if (all(State::ended)) return Served::all_ended;
  if (!all(State::asking)) {
    // Where some have ended and the others ask, they wait in vain: something that is no user's mistake ended the
    // former.
    const bool in_vain =
        std::ranges::none_of(states, [](const std::string& s) { return s[0] == static_cast<char>(State::working); });
    if (!in_vain) return Served::nothing;
    abandon();
    return Served::all_ended;
  }
  // Its owner waits, so that nobody else touches it.
  std::unique_lock lock(mutex_);
  Request& request = *request_;
  lock.unlock();
  std::vector<std::string> answer = ranks_->exchange(request.mine, request.what);
  lock.lock();
  request.answer = std::move(answer);
  changed_.notify_all();
  return Served::something;
}

bool Relay::serve() {
  // What is asked next is often known at once: worth a moment, that a few exchanges need not as many steps.
  constexpr auto moment = std::chrono::milliseconds(2);
  std::unique_lock lock(mutex_);
  State mine = state();
  for (;;) {
    lock.unlock();
    const Served served = serve_once(mine);
    if (served != Served::something) return served == Served::all_ended;
    lock.lock();
    changed_.wait_for(lock, moment, [&] { return state() != State::working; });
    mine = state();
  }
}

void Relay::serve_to_the_end() {
  for (;;) {
    State mine = State::working;
    {
      const LongWork patience;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return state() != State::working; });
      mine = state();
    }
    if (serve_once(mine) == Served::all_ended) return;
  }
}

void Relay::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

}  // namespace inlay::parallel
