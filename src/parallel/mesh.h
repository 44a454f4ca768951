#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace inlay::parallel {

// What a process keeps of what all of them train. Each stage cuts more: the optimizer's state, the gradients, the
// weights (ZeRO).
enum class Zero : std::uint8_t { none = 0, state = 1, gradients = 2, weights = 3 };

// Among whom tensors are cut: all processes, or those of one node, so that every node has everything.
enum class ShardGroup : std::uint8_t { all, node };

// The processes of a run, and how they divide it.
struct Mesh {
  std::shared_ptr<Communicator> all = single_process();
  // Those among which tensors are cut: all of them, or those of one node.
  std::shared_ptr<Communicator> shards = all;
  // Those that hold the same rows: one of every node, where each node has everything.
  std::shared_ptr<Communicator> replicas = single_process();
  Zero zero = Zero::none;
  int on_host = 1;  // processes of this host, which share its memory

  bool many() const { return !all->single(); }
  bool cuts(Zero what) const { return !shards->single() && zero >= what; }
};

}  // namespace inlay::parallel
