#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

// Threads that work for the one that calls: a team of its own for every calling thread, made when it is first needed.
// They wait for work, and it for them, by looking for a moment and then asleep, so that a machine that has other things
// to do is not kept from them.
namespace inlay::backend::cpu {

// True on a thread that works for a team just now: whatever it asks for, it does alone.
bool in_team();

using TeamWork = void (*)(const void* work, int thread);
using PieceWork = void (*)(const void* body, std::int64_t begin, std::int64_t end);
void run_team(int size, TeamWork call, const void* work);
void share_out(std::int64_t count, std::int64_t grain, PieceWork call, const void* body);

// work(thread) on `size` threads at once, the caller being thread 0; returns when all are through. A size of 1, or
// in_team(), means the caller alone. Work must not throw.
template <class Work>
void run_team(int size, const Work& work) {
  run_team(
      size, [](const void* erased, int thread) { (*static_cast<const Work*>(erased))(thread); }, &work);
}

// Where the threads of a team wait for each other.
class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void wait();

 private:
  const int size_;
  std::atomic<int> arrived_ = 0;
  std::atomic<std::uint32_t> phase_ = 0;
};

// Calls body(begin, end) on pieces of [0, count) that cover it, on as many threads as there are, but no smaller than
// about a grain. Each thread begins with a stretch of its own and then helps the others, so that nobody waits long for
// one that has lost its processor. What a body writes must not depend on where pieces begin and end.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  share_out(
      count, grain,
      [](const void* erased, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(erased))(begin, end); },
      &body);
}

}  // namespace inlay::backend::cpu
