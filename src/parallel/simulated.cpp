#include "parallel/simulated.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "backend/cpu/parallel.h"
#include "parallel/communicator.h"

namespace inlay::parallel {

namespace {

void scale(Exec& exec, View tensor, double factor) {
  if (tensor.size() == 0) return;
  if (exec.on_cuda()) return cuda::scale(exec, tensor, factor);
  const auto multiply = [&](auto* values) {
    backend::cpu::parallel_for(tensor.size(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        values[i] = static_cast<std::decay_t<decltype(*values)>>(values[i] * factor);
    });
  };
  tensor.dtype() == DType::f64 ? multiply(static_cast<double*>(tensor.data()))
                               : multiply(static_cast<float*>(tensor.data()));
}

void repeat(Exec& exec, View whole, ConstView rows, std::size_t begin) {
  if (rows.bytes() == 0) return;
  if (exec.on_cuda()) return cuda::repeat(exec, whole, rows, begin);
  char* const to = static_cast<char*>(whole.data());
  const std::size_t period = rows.bytes(), own = begin % period;
  for (std::size_t at = 0; at < whole.bytes();) {
    const std::size_t within = (at + period - own) % period, bytes = std::min(period - within, whole.bytes() - at);
    const char* const from = static_cast<const char*>(rows.data()) + within;
    if (to + at != from) std::memcpy(to + at, from, bytes);
    at += bytes;
  }
}

class SimulatedProcess final : public Communicator {
 public:
  SimulatedProcess(int rank, int size, double bandwidth, double latency)
      : Communicator(rank, size), bandwidth_(bandwidth), latency_(latency) {}

  std::vector<std::string> exchange(std::string_view mine, std::string_view) override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), std::string(mine));
  }
  std::shared_ptr<Communicator> split(int) override { return simulated_process(rank(), size(), bandwidth_, latency_); }

 protected:
  void do_all_reduce(Exec& exec, std::span<const View> tensors, std::string_view) override {
    double bytes = 0;
    for (const View& t : tensors) bytes += 2 * sent(t);
    timed(exec, bytes, [&] {
      for (const View& t : tensors) scale(exec, t, size());
    });
  }

  void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    timed(exec, sent(tensors), [&] {
      for (const CutTensor& t : tensors) {
        const View rows = t.whole.slice_rows(t.cut->begin(rank()), t.cut->end(rank()));
        if (rows.data() != t.share.data()) backend::copy_in_lane(exec, t.share, rows, backend::Lane::network);
        scale(exec, t.share, size());
        repeat(exec, t.whole, t.share, offset(t));
      }
    });
  }

  void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    timed(exec, sent(tensors), [&] {
      for (const CutTensor& t : tensors) repeat(exec, t.whole, t.share, offset(t));
    });
  }

  void do_broadcast(Exec& exec, std::span<const View> tensors, int, std::string_view) override {
    double bytes = 0;
    for (const View& t : tensors) bytes += sent(t);
    timed(exec, bytes, [] {});
  }

  void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view) override {
    const std::int64_t n = to.dim(0) / size();
    timed(exec, sent(to), [&] { repeat(exec, to, from.slice_rows(rank() * n, (rank() + 1) * n), 0); });
  }

 private:
  double sent(ConstView t) const { return static_cast<double>(t.bytes()) * (size() - 1) / size(); }
  double sent(std::span<const CutTensor> tensors) const {
    double bytes = 0;
    for (const CutTensor& t : tensors) bytes += sent(t.whole);
    return bytes;
  }
  std::size_t offset(const CutTensor& t) const {
    return t.whole.dim(0) == 0 ? 0
                               : static_cast<std::size_t>(t.cut->begin(rank())) *
                                     (t.whole.bytes() / static_cast<std::size_t>(t.whole.dim(0)));
  }

  // What is copied counts towards the time.
  template <class Copies>
  void timed(Exec& exec, double bytes, const Copies& copies) const {
    const double seconds = bytes / bandwidth_ + latency_;
    if (exec.on_cuda()) {
      cuda::mark_time(exec);
      copies();
      return cuda::wait_since_mark(exec, seconds);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    copies();
    std::this_thread::sleep_until(end);
  }

  double bandwidth_, latency_;
};

}  // namespace

std::shared_ptr<Communicator> simulated_process(int rank, int size, double bandwidth, double latency) {
  INLAY_ASSERT(0 <= rank && rank < size && bandwidth > 0 && latency >= 0, "simulated rank {} of {}", rank, size);
  return std::make_shared<SimulatedProcess>(rank, size, bandwidth, latency);
}

}  // namespace inlay::parallel
