#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"

// What `inlay bench collectives` has measured, kept with what it was measured on: processes of one host say nothing
// about a network between hosts.
namespace inlay::train {

// A ring through all processes, as many on each node.
struct MeasuredRing {
  double rate = 0;  // bytes/s that each process sends
  int processes = 0, nodes = 0;
  std::int64_t bytes = 0;  // of the tensor that was exchanged
  int iterations = 0;      // of which it is the median

  int per_node() const { return processes / nodes; }
};

// Those that are kept for this kind of machine; none where its device is missing.
std::vector<MeasuredRing> kept_rings(Device device);
// In place of one through as many processes on as many nodes, unless that one was of a larger tensor or of more
// iterations. Returns whether it is kept.
bool keep_ring(Device device, const MeasuredRing& ring);

// The ring that says most about processes of one node: one within a node, through as many processes or nearly so.
// nullptr where there is none.
const MeasuredRing* ring_within(std::span<const MeasuredRing> rings, int per_node);
// About nodes: one that leaves them with as many processes on each, since those may share a link or have their own,
// through as many nodes or nearly so.
const MeasuredRing* ring_between(std::span<const MeasuredRing> rings, int per_node, int nodes);

}  // namespace inlay::train
