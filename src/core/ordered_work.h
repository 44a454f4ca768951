#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/processors.h"

namespace inlay {

// Jobs that are done on several threads and come back in the order in which they were given. One thread gives and
// takes. It must not give without end: bytes() says how much is under way.
template <class Job>
class OrderedWork {
 public:
  // Threads: 0, as many as processors are granted. Work is called for each job, and should return early once `stopped`;
  // what it throws is thrown again by take().
  OrderedWork(int threads, std::function<void(Job& job, const std::atomic<bool>& stopped)> work)
      : work_(std::move(work)) {
    for (int count = threads > 0 ? threads : granted_processors(); count > 0; --count)
      threads_.emplace_back([this] { loop(); });
  }
  // Jobs that nobody took are dropped.
  ~OrderedWork() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    given_.notify_all();
  }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;

  std::size_t bytes() const { return bytes_; }
  bool empty() const { return entries_.empty(); }

  void give(Job job, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      entries_.push_back(std::make_unique<Entry>(Entry{std::move(job), bytes}));
      waiting_.push_back(entries_.back().get());
    }
    bytes_ += bytes;
    given_.notify_one();
  }

  // Waits for the oldest job for a while; not empty. Whether it is done.
  bool wait(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, most, [&] { return entries_.front()->done; });
  }

  // The oldest job, which is done.
  Job take() {
    std::unique_ptr<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    bytes_ -= entry->bytes;
    if (entry->failure) std::rethrow_exception(entry->failure);
    return std::move(entry->job);
  }

 private:
  struct Entry {
    Job job;
    std::size_t bytes;
    bool done = false;
    std::exception_ptr failure = nullptr;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      given_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      Entry* entry = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        work_(entry->job, stopped_);
      } catch (...) {
        entry->failure = std::current_exception();
      }
      lock.lock();
      entry->done = true;
      if (entry == entries_.front().get()) done_.notify_one();
    }
  }

  std::function<void(Job&, const std::atomic<bool>&)> work_;
  std::mutex mutex_;
  std::condition_variable given_, done_;
  std::deque<std::unique_ptr<Entry>> entries_;  // in order
  std::deque<Entry*> waiting_;                  // those that nobody works on yet
  std::atomic<bool> stopped_{false};
  std::size_t bytes_ = 0;              // the giving thread's own
  std::vector<std::jthread> threads_;  // the last member: they end before anything else does
};

}  // namespace inlay
