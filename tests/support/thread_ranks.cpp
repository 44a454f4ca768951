#include "support/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace inlay::testing {

namespace {

using parallel::Communicator;
using parallel::CutTensor;
using parallel::Exec;

struct Abandoned : std::runtime_error {
  Abandoned() : std::runtime_error("another rank has failed") {}
};

// Whether some rank has failed, for all groups that were split off.
struct Failure {
  std::mutex mutex;
  std::exception_ptr first;
};

// Where the ranks of a group meet.
class Hub {
 public:
  Hub(int size, std::shared_ptr<Failure> failure)
      : slots(static_cast<std::size_t>(size)), failure_(std::move(failure)) {}

  void meet() {
    std::unique_lock lock(mutex_);
    const std::size_t mine = generation_;
    if (++waiting_ == slots.size()) {
      waiting_ = 0;
      ++generation_;
      changed_.notify_all();
      return;
    }
    while (generation_ == mine) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      const std::lock_guard failed(failure_->mutex);
      if (failure_->first != nullptr && generation_ == mine) throw Abandoned();
    }
  }

  std::shared_ptr<Hub> part(int colour, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Hub>& hub = parts_[{generation_, colour}];
    if (hub == nullptr) hub = std::make_shared<Hub>(size, failure_);
    return hub;
  }

  struct Slot {
    std::string text;
    std::vector<View> views;
  };
  std::vector<Slot> slots;

 private:
  std::shared_ptr<Failure> failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t waiting_ = 0, generation_ = 0;
  std::map<std::pair<std::size_t, int>, std::shared_ptr<Hub>> parts_;
};

template <class T>
void add(std::vector<std::byte>& sum, const View& from) {
  T* to = reinterpret_cast<T*>(sum.data());
  const T* values = from.as<T>();
  for (std::int64_t i = 0; i < from.size(); ++i) to[i] += values[i];
}

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int rank, int size, std::shared_ptr<Hub> hub) : Communicator(rank, size), hub_(std::move(hub)) {}

  std::vector<std::string> exchange(std::string_view mine, std::string_view) override {
    slot().text = mine;
    hub_->meet();
    std::vector<std::string> all;
    for (const Hub::Slot& s : hub_->slots) all.push_back(s.text);
    hub_->meet();
    return all;
  }

  std::shared_ptr<Communicator> split(int colour) override {
    const std::vector<std::string> colours = exchange(std::to_string(colour), "split");
    int members = 0, place = 0;
    for (int r = 0; r < size(); ++r) {
      if (colours[static_cast<std::size_t>(r)] != std::to_string(colour)) continue;
      if (r == rank()) place = members;
      ++members;
    }
    std::shared_ptr<Hub> hub = hub_->part(colour, members);
    hub_->meet();
    return std::make_shared<ThreadRank>(place, members, std::move(hub));
  }

 protected:
  void do_all_reduce(Exec& exec, std::span<const View> tensors, std::string_view) override {
    check(exec);
    reduce({tensors.begin(), tensors.end()},
           [&](std::size_t i, const View& theirs) { return std::pair(theirs, tensors[i]); });
  }

  void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    check(exec);
    std::vector<View> wholes;
    for (const CutTensor& t : tensors) wholes.push_back(t.whole);
    reduce(std::move(wholes), [&](std::size_t i, const View& theirs) {
      const parallel::RowCut& cut = *tensors[i].cut;
      return std::pair(theirs.slice_rows(cut.begin(rank()), cut.end(rank())), tensors[i].share);
    });
  }

  void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    check(exec);
    slot().views.clear();
    for (const CutTensor& t : tensors) slot().views.push_back(t.share);
    hub_->meet();
    for (int r = 0; r < size(); ++r) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const parallel::RowCut& cut = *tensors[i].cut;
        copy(tensors[i].whole.slice_rows(cut.begin(r), cut.end(r)), of(r).views[i]);
      }
    }
    hub_->meet();
  }

  void do_broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view) override {
    check(exec);
    slot().views.assign(tensors.begin(), tensors.end());
    hub_->meet();
    for (std::size_t i = 0; i < tensors.size(); ++i) copy(tensors[i], of(root).views[i]);
    hub_->meet();
  }

  void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view) override {
    check(exec);
    slot().views = {View(const_cast<void*>(from.data()), from.dtype(), from.shape())};
    hub_->meet();
    const std::int64_t n = to.dim(0) / size();
    for (int r = 0; r < size(); ++r) {
      copy(to.slice_rows(r * n, (r + 1) * n), of(r).views[0].slice_rows(rank() * n, (rank() + 1) * n));
    }
    hub_->meet();
  }

 private:
  static void check(Exec& exec) { INLAY_ASSERT(!exec.on_cuda(), "ranks that are threads exchange host memory"); }
  static void copy(View to, ConstView from) {
    if (to.data() != from.data() && to.bytes() > 0) std::memcpy(to.data(), from.data(), to.bytes());
  }
  Hub::Slot& of(int rank) { return hub_->slots[static_cast<std::size_t>(rank)]; }
  Hub::Slot& slot() { return of(rank()); }

  // Sums over ranks of what pieces(i, a rank's tensor i) names first, into what it names second.
  template <class Pieces>
  void reduce(std::vector<View> mine, const Pieces& pieces) {
    slot().views = std::move(mine);
    hub_->meet();
    const std::size_t count = slot().views.size();
    std::vector<std::vector<std::byte>> sums(count);
    for (std::size_t i = 0; i < count; ++i) {
      for (int r = 0; r < size(); ++r) {
        const View from = pieces(i, of(r).views[i]).first;
        sums[i].resize(from.bytes());
        from.dtype() == DType::f64 ? add<double>(sums[i], from) : add<float>(sums[i], from);
      }
    }
    hub_->meet();
    for (std::size_t i = 0; i < count; ++i) {
      if (!sums[i].empty()) std::memcpy(pieces(i, slot().views[i]).second.data(), sums[i].data(), sums[i].size());
    }
    hub_->meet();
  }

  std::shared_ptr<Hub> hub_;
};

}  // namespace

void run_ranks(int size, const std::function<void(const std::shared_ptr<Communicator>&)>& body) {
  const auto failure = std::make_shared<Failure>();
  const auto hub = std::make_shared<Hub>(size, failure);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(std::make_shared<ThreadRank>(rank, size, hub));
      } catch (...) {
        const std::lock_guard lock(failure->mutex);
        if (failure->first == nullptr) failure->first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure->first != nullptr) std::rethrow_exception(failure->first);
}

}  // namespace inlay::testing
