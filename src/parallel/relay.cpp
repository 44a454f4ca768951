#include "parallel/relay.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/interrupt.h"
#include "parallel/activity.h"

namespace inlay::parallel {

Relay::Relay(std::shared_ptr<Communicator> ranks)
    : Communicator(ranks->rank(), ranks->size()), ranks_(std::move(ranks)) {}

void Relay::expect() {
  const std::lock_guard lock(mutex_);
  running_ = true;
  abandoned_ = false;
  how_ended_ = State::ended;
  mistake_.clear();
  ends_.clear();
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
  const auto remember = [&](State how, const char* mistake) {
    const std::lock_guard lock(mutex_);
    how_ended_ = how;
    mistake_ = mistake;
  };
  try {
    work(*this);
  } catch (const FailedElsewhere&) {
    throw;
  } catch (const Interrupted&) {
    remember(State::failed, "");
    throw;
  } catch (const UserError& error) {
    remember(State::mistaken, error.what());
    throw;
  } catch (...) {
    remember(State::failed, "");
    throw;
  }
}

std::vector<std::string> Relay::exchange(std::string_view mine, std::string_view what) {
  Request request{std::string(mine), std::string(what), {}};
  std::unique_lock lock(mutex_);
  request_ = &request;
  changed_.notify_all();
  changed_.wait(lock, [&] { return request.answer || abandoned_; });
  request_ = nullptr;
  if (!request.answer) throw FailedElsewhere();
  return *std::move(request.answer);
}

std::shared_ptr<Communicator> Relay::split(int) { refuse("dividing the ranks"); }

void Relay::refuse(std::string_view what) { throw InternalError(fmt::format("{}: not on a thread beside", what)); }

// An answer that was not fetched yet is no question.
Relay::State Relay::state() const {
  if (!running_) return how_ended_;
  return request_ != nullptr && !request_->answer ? State::asking : State::working;
}

Relay::Served Relay::serve_once(State mine) {
  std::string words(1, static_cast<char>(mine));
  if (mine == State::mistaken) words += mistake_;  // of a thread that has ended
  std::vector<std::string> all = ranks_->exchange(words, "how far the threads beside are");
  const auto count = [&](State state) {
    return std::ranges::count_if(all, [&](const std::string& s) { return state_in(s) == state; });
  };
  const auto asking = count(State::asking);
  if (asking < size()) {
    // Where some have ended and all others ask, these wait in vain: something has ended the former too soon.
    if (count(State::working) > 0) return Served::nothing;
    if (asking > 0) abandon();
    ends_ = std::move(all);
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

void Relay::raise_what_differs() {
  const std::vector<std::string> ends = std::exchange(ends_, {});
  if (ends.empty() || std::ranges::all_of(ends, [&](const std::string& end) { return end == ends.front(); })) return;
  const auto first_with = [&](State state) {
    return static_cast<int>(std::ranges::find_if(ends, [&](const std::string& end) { return state_in(end) == state; }) -
                            ends.begin());
  };
  if (first_with(State::failed) < size()) {
    if (state_in(ends[static_cast<std::size_t>(rank())]) == State::failed) return;
    throw FailedElsewhere();
  }
  const int rank = first_with(State::mistaken);
  INLAY_ASSERT(rank < size(), "threads beside have made different calls");
  throw SharedError(fmt::format("{}: {}", name_of(rank), ends[static_cast<std::size_t>(rank)].substr(1)));
}

void Relay::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

}  // namespace inlay::parallel
