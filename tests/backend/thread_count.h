#pragma once

#include "backend/cpu/threads.h"

namespace inlay::testing {

// So many threads of the CPU, as long as it lives.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(backend::cpu::threads()) { backend::cpu::set_threads(threads); }
  ~ThreadCount() { backend::cpu::set_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

}  // namespace inlay::testing
