#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/lanes.h"
#include "core/error.h"
#include "parallel/row_cut.h"

// How the processes of a run exchange what they have. Every rank makes the same calls in the same order.
namespace inlay::parallel {

using backend::Exec;

// A tensor that is cut along its rows, and the rows of it that this rank has: in place, as a slice of the whole, or
// elsewhere. Both are contiguous and of one dtype.
struct CutTensor {
  View whole, share;
  const RowCut* cut = nullptr;
};

class Communicator {
 public:
  Communicator(int rank, int size, int nodes = 1) : rank_(rank), size_(size), nodes_(nodes) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int nodes() const { return nodes_; }  // that they are on, where it is a plan; else 1
  bool single() const { return size_ == 1; }
  bool leads() const { return rank_ == 0; }  // it speaks, and writes what is written once

  // Tensors of an Exec's device, in its Lane::network: they begin after everything that the lane waits for, and who
  // needs a result waits for the lane (backend/lanes.h). When planning, the bytes that this rank sends are counted
  // (Work::network) and nothing is done. Sums are in fp32 or fp64, in a fixed order: the same input gives the same
  // bits, on every rank. `what` is for a person who wants to know where a run hangs.
  //
  // Every tensor becomes the sum of those of all ranks.
  void all_reduce(Exec& exec, std::span<const View> tensors, std::string_view what);
  // The share becomes its rows' sums over all ranks; the rest of the whole is undefined afterwards.
  void reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view what);
  // The whole becomes everybody's shares.
  void all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view what);
  // Every rank's tensor becomes the root's.
  void broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view what);
  // [size · n, ...]: rows [r·n, (r + 1)·n) of `from` go to rank r; those of `to` have come from it.
  void all_to_all(Exec& exec, View to, ConstView from, std::string_view what);

  // Small things on the host. These wait for all ranks.
  //
  // What every rank has said, in the order of the ranks.
  virtual std::vector<std::string> exchange(std::string_view mine, std::string_view what) = 0;
  void barrier(std::string_view what) { exchange({}, what); }
  bool any(bool mine, std::string_view what);
  std::vector<double> sum(std::span<const double> mine, std::string_view what);  // in the order of the ranks
  std::string from_leader(std::string_view mine, std::string_view what);

  // The ranks of one colour among themselves, in their order. Every rank calls it.
  virtual std::shared_ptr<Communicator> split(int colour) = 0;
  // Host and number of a rank, for messages: "rank 3 on node07".
  virtual std::string name_of(int rank) const;

 protected:
  virtual void do_all_reduce(Exec& exec, std::span<const View> tensors, std::string_view what) = 0;
  virtual void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) = 0;
  virtual void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) = 0;
  virtual void do_broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view what) = 0;
  virtual void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view what) = 0;

 private:
  void count(Exec& exec, double bytes, int rounds) const;

  int rank_, size_, nodes_;
};

// A run of one process.
std::shared_ptr<Communicator> single_process();
// As a rank of so many that are not there: plans with it, and does nothing else.
std::shared_ptr<Communicator> planned_process(int rank, int size, int nodes = 1);
// As one of so many that all have what this one has: its exchanges write what would arrive and take the time that a
// network would, on their lane (bytes/s that each rank sends, and seconds per exchange), so that one device shows how
// much hides behind the kernels.
std::shared_ptr<Communicator> simulated_process(int rank, int size, double bandwidth, double latency);

// An error that all ranks throw alike: one of them has to say it.
class SharedError : public UserError {
 public:
  using UserError::UserError;
};

// Runs work on every rank, however long it takes one of them. Where some threw a UserError, all throw one that says
// whose it was.
void together(Communicator& communicator, std::string_view what, const std::function<void()>& work);

}  // namespace inlay::parallel
