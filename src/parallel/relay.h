#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "parallel/communicator.h"

namespace inlay::parallel {

// Another rank has met a defect of ours or has run out of memory, and says so itself: this one ends without a word.
class FailedElsewhere : public std::runtime_error {
 public:
  FailedElsewhere() : std::runtime_error("another process has failed") {}
};

// What ranks exchange on a thread beside the one that computes. What lies beneath a communicator is for one thread
// alone, so the exchanges of the other wait until that one carries them out, between its own. Every rank has such a
// thread, and they make the same calls in the same order.
class Relay final : public Communicator {
 public:
  explicit Relay(std::shared_ptr<Communicator> ranks);

  // On the thread beside: work may exchange what is small and on the host.
  void run(const std::function<void(Communicator& ranks)>& work);
  std::vector<std::string> exchange(std::string_view mine, std::string_view what) override;
  std::shared_ptr<Communicator> split(int colour) override;
  std::string name_of(int rank) const override { return ranks_->name_of(rank); }

  // On the thread that computes. All ranks call these, in the order of their other exchanges.
  //
  // A run() is about to begin.
  void expect();
  // Carries out what all ranks ask for by now, and what follows from that at once; nobody waits for long work. Whether
  // the work of all has ended.
  bool serve();
  // Until the work of all has ended, however long it takes.
  void serve_to_the_end();
  // After the work of all has ended: what ended it, as an exception, where ranks differ in that. A user's mistake that
  // some have met and others not is one of all; of anything else they have FailedElsewhere, and who has met it nothing.
  // Where all have met the same, each has it already.
  void raise_what_differs();
  // This rank alone: nothing more is carried out. Who asks is told by FailedElsewhere.
  void abandon();

 protected:
  void do_all_reduce(Exec&, std::span<const View>, std::string_view what) override { refuse(what); }
  void do_reduce_scatter(Exec&, std::span<const CutTensor>, std::string_view what) override { refuse(what); }
  void do_all_gather(Exec&, std::span<const CutTensor>, std::string_view what) override { refuse(what); }
  void do_broadcast(Exec&, std::span<const View>, int, std::string_view what) override { refuse(what); }
  void do_all_to_all(Exec&, View, ConstView, std::string_view what) override { refuse(what); }

 private:
  // The last two are ends as well: by a user's mistake, whose words follow the letter, and by anything else.
  enum class State : char { working = 'w', asking = 'a', ended = 'e', mistaken = 'm', failed = 'f' };
  struct Request {
    std::string mine, what;
    std::optional<std::vector<std::string>> answer;
  };

  [[noreturn]] static void refuse(std::string_view what);
  static State state_in(const std::string& words) { return static_cast<State>(words[0]); }
  State state() const;  // with the mutex locked
  // Whether all ended, and otherwise whether all asked, and were answered.
  enum class Served : std::uint8_t { nothing, something, all_ended };
  Served serve_once(State mine);

  std::shared_ptr<Communicator> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Request* request_ = nullptr;  // of the thread beside, which waits for its answer
  bool running_ = false, abandoned_ = false;
  State how_ended_ = State::ended;
  std::string mistake_;
  std::vector<std::string> ends_;  // of all ranks, when all have ended
};

}  // namespace inlay::parallel
