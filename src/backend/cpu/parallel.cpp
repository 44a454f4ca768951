#include "backend/cpu/parallel.h"

#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "backend/cpu/threads.h"

namespace inlay::backend::cpu {

namespace {

thread_local bool working = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when value is no longer `old`: looks for it as long as the next piece of work usually takes to come, then
// sleeps.
template <class T>
T wait_while(const std::atomic<T>& value, T old) {
  constexpr auto patience = std::chrono::microseconds(50);
  constexpr int looks = 32;  // between looks at the clock
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < looks; ++i) {
      if (const T now = value.load(std::memory_order_acquire); now != old) return now;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  for (;;) {
    value.wait(old, std::memory_order_acquire);
    if (const T now = value.load(std::memory_order_acquire); now != old) return now;
  }
}

struct Job {
  TeamWork call = nullptr;
  const void* work = nullptr;
};

// The threads that work for one.
class Team {
 public:
  Team() = default;
  ~Team() {
    job_ = {};
    for (Worker& worker : workers_) worker.give();
    for (Worker& worker : workers_) worker.thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(int size, const Job& job) {
    while (std::ssize(workers_) < size - 1) {
      Worker& worker = workers_.emplace_back();
      const int number = static_cast<int>(workers_.size());
      worker.thread = std::thread([this, &worker, number] { serve(worker, number); });
    }
    job_ = job;
    busy_.store(size - 1, std::memory_order_relaxed);
    for (int i = 0; i + 1 < size; ++i) workers_[static_cast<std::size_t>(i)].give();
    working = true;
    job.call(job.work, 0);
    working = false;
    for (int left = busy_.load(std::memory_order_acquire); left > 0;) left = wait_while(busy_, left);
  }

 private:
  struct alignas(64) Worker {
    void give() {
      turn.fetch_add(1, std::memory_order_release);
      turn.notify_one();
    }
    std::atomic<std::uint32_t> turn = 0;
    std::thread thread;
  };

  void serve(Worker& self, int number) {
    working = true;
    for (std::uint32_t turn = 0;;) {
      turn = wait_while(self.turn, turn);
      if (job_.call == nullptr) return;
      job_.call(job_.work, number);
      if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
    }
  }

  Job job_;
  alignas(64) std::atomic<int> busy_ = 0;
  std::deque<Worker> workers_;
};

}  // namespace

bool in_team() { return working; }

void run_team(int size, TeamWork call, const void* work) {
  if (size <= 1 || working) {
    const bool before = working;
    working = true;
    call(work, 0);
    working = before;
    return;
  }
  thread_local Team team;
  team.run(size, {call, work});
}

void Barrier::wait() {
  const std::uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
  } else {
    wait_while(phase_, phase);
  }
}

void share_out(std::int64_t count, std::int64_t grain, PieceWork call, const void* body) {
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / std::max<std::int64_t>(grain, 1);
  const auto size = static_cast<int>(std::min<std::int64_t>(threads(), grains));
  if (size <= 1 || working) return call(body, 0, count);
  constexpr std::int64_t most_parts = 4;  // of a thread's stretch
  const std::int64_t parts = std::clamp<std::int64_t>(grains / size, 1, most_parts), all = parts * size;
  struct alignas(64) Stretch {
    std::atomic<std::int64_t> next = 0;
  };
  std::vector<Stretch> stretches(static_cast<std::size_t>(size));
  run_team(size, [&](int thread) {
    for (int i = 0; i < size; ++i) {
      const int whose = (thread + i) % size;
      std::atomic<std::int64_t>& next = stretches[static_cast<std::size_t>(whose)].next;
      for (std::int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
        const std::int64_t at = whose * parts + part;
        call(body, count * at / all, count * (at + 1) / all);
      }
    }
  });
}

}  // namespace inlay::backend::cpu
