#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/processors.h"

namespace inlay {

void parallel_each(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  // Of many pieces each thread takes several in a row, so that threads do not write to the same lines of memory in
  // turn.
  const std::size_t run = std::clamp<std::size_t>(count / 256, 1, 32);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto loop = [&] {
    try {
      for (std::size_t begin = next.fetch_add(run); begin < count; begin = next.fetch_add(run)) {
        for (std::size_t i = begin; i < std::min(begin + run, count); ++i) {
          if (failed.load(std::memory_order_relaxed)) return;
          work(i);
        }
      }
    } catch (...) {
      failed = true;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const std::size_t wanted =
      threads > 0 ? static_cast<std::size_t>(threads) : static_cast<std::size_t>(granted_processors());
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(wanted, count); ++i) others.emplace_back(loop);
  loop();
  others.clear();  // waits
  if (failure) std::rethrow_exception(failure);
}

}  // namespace inlay
