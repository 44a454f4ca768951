#pragma once

#include "parallel/communicator.h"
#include "parallel/transport.h"

namespace inlay::parallel {

// Exchanges tensors in host memory. Sums are made where their result is needed, in the order of the ranks.
class HostCommunicator final : public Communicator {
 public:
  // `name` is this rank's, for messages.
  HostCommunicator(std::shared_ptr<Transport> transport, std::string name);

  std::vector<std::string> exchange(std::string_view mine, std::string_view what) override;
  std::shared_ptr<Communicator> split(int colour) override { return split_host(colour); }
  std::string name_of(int rank) const override { return names_[static_cast<std::size_t>(rank)]; }
  const std::vector<std::string>& names() const { return names_; }

  std::shared_ptr<HostCommunicator> split_host(int colour);

 protected:
  void do_all_reduce(Exec& exec, std::span<const View> tensors, std::string_view what) override;
  void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) override;
  void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) override;
  void do_broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view what) override;
  void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view what) override;

 private:
  void reduce_scatter_now(std::span<const CutTensor> tensors);
  void all_gather_now(std::span<const CutTensor> tensors);

  std::shared_ptr<Transport> transport_;
  std::vector<std::string> names_;
};

}  // namespace inlay::parallel
