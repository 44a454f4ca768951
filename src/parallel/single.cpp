#include <cstring>

#include "core/error.h"
#include "parallel/communicator.h"

namespace inlay::parallel {

namespace {

// Its share is everything.
class SingleProcess final : public Communicator {
 public:
  SingleProcess() : Communicator(0, 1) {}

  std::vector<std::string> exchange(std::string_view mine, std::string_view) override { return {std::string(mine)}; }
  std::shared_ptr<Communicator> split(int) override { return single_process(); }

 protected:
  void do_all_reduce(Exec&, std::span<const View>, std::string_view) override {}
  void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    for (const CutTensor& t : tensors) copy(exec, t.share, t.whole);
  }
  void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view) override {
    for (const CutTensor& t : tensors) copy(exec, t.whole, t.share);
  }
  void do_broadcast(Exec&, std::span<const View>, int, std::string_view) override {}
  void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view) override { copy(exec, to, from); }

 private:
  static void copy(Exec& exec, View to, ConstView from) {
    if (to.data() != from.data()) backend::copy_in_lane(exec, to, from, backend::Lane::network);
  }
};

class PlannedProcess final : public Communicator {
 public:
  using Communicator::Communicator;

  std::vector<std::string> exchange(std::string_view mine, std::string_view) override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), std::string(mine));
  }
  std::shared_ptr<Communicator> split(int) override { return planned_process(rank(), size()); }

 protected:
  void do_all_reduce(Exec&, std::span<const View>, std::string_view) override { runs(); }
  void do_reduce_scatter(Exec&, std::span<const CutTensor>, std::string_view) override { runs(); }
  void do_all_gather(Exec&, std::span<const CutTensor>, std::string_view) override { runs(); }
  void do_broadcast(Exec&, std::span<const View>, int, std::string_view) override { runs(); }
  void do_all_to_all(Exec&, View, ConstView, std::string_view) override { runs(); }

 private:
  static void runs() { INLAY_ASSERT(false, "a planned process cannot exchange anything"); }
};

}  // namespace

std::shared_ptr<Communicator> single_process() { return std::make_shared<SingleProcess>(); }

std::shared_ptr<Communicator> planned_process(int rank, int size, int nodes) {
  return std::make_shared<PlannedProcess>(rank, size, nodes);
}

}  // namespace inlay::parallel
