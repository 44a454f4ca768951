#include "parallel/communicator.h"

#include <algorithm>
#include <cstring>

#include "core/interrupt.h"
#include "parallel/activity.h"

namespace inlay::parallel {

using backend::Work;

namespace {

void check_cut(const CutTensor& t, int rank, int size) {
  INLAY_ASSERT(t.cut != nullptr && t.cut->ranks() == size && t.cut->rows() == t.whole.dim(0), "{} is cut otherwise",
               t.whole.shape().str());
  INLAY_ASSERT(t.share.dim(0) == t.cut->rows_of(rank) && t.share.dtype() == t.whole.dtype(),
               "rank {} has {} rows of {}, but the share is {}", rank, t.cut->rows_of(rank), t.whole.shape().str(),
               t.share.shape().str());
  INLAY_ASSERT(t.whole.contiguous() && t.share.contiguous(), "a tensor that is exchanged has gaps");
}

void check_sum(ConstView tensor) {
  INLAY_ASSERT(tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64, "sums over ranks are fp32 or fp64, not {}",
               inlay::name_of(tensor.dtype()));
}

double bytes_of(const View& tensor) { return static_cast<double>(tensor.bytes()); }

}  // namespace

// What a rank sends of so many bytes that go round a ring so often.
void Communicator::count(Exec& exec, double bytes, int rounds) const {
  if (single()) return;
  const double sent = rounds * bytes * (size_ - 1) / size_;
  exec.count(&Work::network, sent);
  exec.count(&Work::collectives, rounds);
  if (nodes_ == 1) return;
  exec.count(&Work::network_far, sent);
  exec.count(&Work::collectives_far, rounds);
}

void Communicator::all_reduce(Exec& exec, std::span<const View> tensors, std::string_view what) {
  double bytes = 0;
  for (const View& t : tensors) {
    check_sum(t);
    bytes += bytes_of(t);
  }
  count(exec, bytes, 2);
  if (!exec.planning() && !single()) do_all_reduce(exec, tensors, what);
}

void Communicator::reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) {
  double bytes = 0;
  for (const CutTensor& t : tensors) {
    check_cut(t, rank_, size_);
    check_sum(t.whole);
    bytes += bytes_of(t.whole);
  }
  count(exec, bytes, 1);
  if (!exec.planning()) do_reduce_scatter(exec, tensors, what);
}

void Communicator::all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) {
  double bytes = 0;
  for (const CutTensor& t : tensors) {
    check_cut(t, rank_, size_);
    bytes += bytes_of(t.whole);
  }
  count(exec, bytes, 1);
  if (!exec.planning()) do_all_gather(exec, tensors, what);
}

void Communicator::broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view what) {
  INLAY_ASSERT(0 <= root && root < size_, "a broadcast from rank {} of {}", root, size_);
  double bytes = 0;
  for (const View& t : tensors) bytes += bytes_of(t);
  count(exec, bytes, 1);
  if (!exec.planning() && !single()) do_broadcast(exec, tensors, root, what);
}

void Communicator::all_to_all(Exec& exec, View to, ConstView from, std::string_view what) {
  INLAY_ASSERT(to.shape() == from.shape() && to.dtype() == from.dtype() && to.dim(0) % size_ == 0,
               "all_to_all of {} to {} among {}", from.shape().str(), to.shape().str(), size_);
  count(exec, bytes_of(to), 1);
  if (!exec.planning()) do_all_to_all(exec, to, from, what);
}

bool Communicator::any(bool mine, std::string_view what) {
  const std::vector<std::string> all = exchange(mine ? "1" : "0", what);
  return std::find(all.begin(), all.end(), "1") != all.end();
}

std::vector<double> Communicator::sum(std::span<const double> mine, std::string_view what) {
  const std::size_t bytes = mine.size() * sizeof(double);
  std::vector<double> total(mine.size(), 0.0), one(mine.size());
  for (const std::string& text : exchange({reinterpret_cast<const char*>(mine.data()), bytes}, what)) {
    INLAY_ASSERT(text.size() == bytes, "{}: ranks sum {} and {} bytes", what, bytes, text.size());
    if (bytes > 0) std::memcpy(one.data(), text.data(), bytes);  // of nothing there is no place to copy to
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += one[i];
  }
  return total;
}

std::string Communicator::from_leader(std::string_view mine, std::string_view what) {
  return exchange(leads() ? mine : std::string_view(), what).front();
}

std::string Communicator::name_of(int rank) const { return fmt::format("rank {}", rank); }

void together(Communicator& communicator, std::string_view what, const std::function<void()>& work) {
  if (communicator.single()) return work();
  std::string error;
  try {
    const LongWork patience;  // the others may be done sooner, and wait
    work();
  } catch (const Interrupted&) {
    throw;  // that ends all of them
  } catch (const UserError& mine) {
    error = *mine.what() == '\0' ? "failed" : mine.what();
  }
  const std::vector<std::string> errors = communicator.exchange(error, what);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const std::string& text = errors[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    const bool everywhere = std::all_of(errors.begin(), errors.end(), [&](const std::string& e) { return e == text; });
    throw SharedError(everywhere ? text : fmt::format("{}: {}", communicator.name_of(rank), text));
  }
}

}  // namespace inlay::parallel
