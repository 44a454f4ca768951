#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "parallel/split_projection.h"

// Ranks as threads of this process, each with an Exec of its own, that meet in a real all-reduce.
namespace inlay::testing {

class SimulatedRanks {
 public:
  explicit SimulatedRanks(int count) : meeting_(count), parts_(static_cast<std::size_t>(count)) {}

  int count() const { return static_cast<int>(parts_.size()); }

  // body(rank, all_reduce) on every rank at once; returns when all are done.
  void run(const std::function<void(int rank, const parallel::AllReduce& all_reduce)>& body) {
    std::vector<std::exception_ptr> errors(parts_.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank, [this, rank](backend::Exec& exec, View sum) { all_reduce(rank, exec, sum); });
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
          meeting_.arrive_and_drop();  // the others must not wait for this one
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error != nullptr) std::rethrow_exception(error);
    }
  }

 private:
  // Adds in the order of the ranks, so that all of them get the same bits.
  void all_reduce(int rank, backend::Exec& exec, View sum) {
    std::vector<float>& mine = parts_[static_cast<std::size_t>(rank)];
    mine.resize(static_cast<std::size_t>(sum.size()));
    exec.download(mine.data(), sum);
    meeting_.arrive_and_wait();
    std::vector<float> total(mine.size(), 0.0f);
    for (const std::vector<float>& part : parts_) {
      INLAY_ASSERT(part.size() == total.size(), "ranks reduce {} and {} numbers", part.size(), total.size());
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
    }
    exec.upload(sum, total.data());
    meeting_.arrive_and_wait();  // nobody may begin the next one while others still read
  }

  std::barrier<> meeting_;
  std::vector<std::vector<float>> parts_;
};

}  // namespace inlay::testing
