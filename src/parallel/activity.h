#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>

namespace inlay::parallel {

// What this process is exchanging with the others just now: told by the communicators, asked by the watchdog. Ranks
// make the same calls in the same order, so that their numbers can be compared.
class Activity {
 public:
  // While it lives, this thread waits for other ranks.
  class Wait {
   public:
    Wait(Activity& activity, std::string_view what);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Activity& activity_;
    std::int64_t number_;
  };

  // The device waits for other ranks, until `done` says that it has ended. Asked on the watchdog's thread.
  void launched(std::string_view what, std::function<bool()> done);

  // Asked for by the watchdog: nothing, or what went wrong behind the program's back.
  using Check = std::function<std::string()>;
  std::list<Check>::iterator add_check(Check check);
  void remove_check(std::list<Check>::iterator check);

  struct Now {
    std::int64_t begun = 0;    // exchanges so far
    std::int64_t waiting = 0;  // the number of the oldest that has not ended; 0: none
    std::string what;          // its name
    bool long_work = false;
    std::string trouble;
  };
  Now now();

 private:
  friend class LongWork;
  struct Exchange {
    std::int64_t number;
    std::string what;
    std::function<bool()> done;  // empty: ends with its Wait
  };

  std::mutex mutex_;
  std::int64_t begun_ = 0;
  int long_works_ = 0;
  std::deque<Exchange> open_;
  std::list<Check> checks_;
};

Activity& activity();  // of this process

// While it lives, the watchdog lets the other ranks wait for this one for as long as it takes: for what one rank does
// alone, such as preparing data.
class LongWork {
 public:
  LongWork();
  ~LongWork();
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

 private:
  bool counts_;
};

// While it lives, nobody waits for this thread: the one that computes goes on, and is watched as ever.
class WorkBeside {
 public:
  WorkBeside();
  ~WorkBeside();
  WorkBeside(const WorkBeside&) = delete;
  WorkBeside& operator=(const WorkBeside&) = delete;
};

}  // namespace inlay::parallel
