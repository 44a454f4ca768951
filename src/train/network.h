#pragma once

#include <string>

#include "train/ceilings.h"
#include "train/engine.h"
#include "train/measured_network.h"

// What processes that exchange weights and gradients cost a step, before there are any.
namespace inlay::train {

// How many processes, on how many nodes, and among whom tensors are cut.
struct TeamShape {
  int processes = 1, nodes = 1;
  bool shards_in_node = false;  // each node has everything; the same rows of all nodes are summed

  int per_node() const { return processes / nodes; }
};

// What collectives reach, each way. A ring's time is what each process sends by the rate of its slowest link, and a
// delay for each process that it goes through.
struct NetworkRates {
  double within = 0;                                  // bytes/s of a process to others of its node
  double between = 0;                                 // bytes/s of a whole node to others
  double hop_within = 0, hop_between = 0, start = 0;  // seconds
  std::string source;                                 // where they come from, for people
};

// By the name of a link: nvlink or pcie within a node, ib400 or eth100 between nodes; GB/s of each process, where
// processes are on one node within it, else between nodes; or one for each, as in "pcie,eth100". For what is not named,
// what was measured on a link of that kind, else NVLink, and InfiniBand at 400 Gb/s for every GPU. UserError where it
// is none of these.
NetworkRates network_rates(const std::string& link, const TeamShape& team, std::span<const MeasuredRing> rings = {});

// Of one process and step. What is sent runs beside the kernels, a layer ahead or behind: in each pass the longer of
// the two counts, and the part of the other that nothing hides: the first to come or the last to leave, a layer and the
// embedding. Sums that are made once leave during the last backward pass, and weights that the optimizer has changed
// come during the next forward pass.
struct TeamEstimate {
  double compute_seconds = 0;  // kernels and copies alone
  double network_seconds = 0;  // collectives alone
  double step_seconds = 0;
  double tokens_per_second = 0;               // of all processes together
  double sent_bytes = 0, sent_far_bytes = 0;  // in all, and in groups that span nodes
  double layer_bytes = 0;                     // of one layer, with one micro-batch

  double exposed_seconds() const { return step_seconds - compute_seconds; }
};
// What a pass begins or ends with, as a share of the model.
struct Edge {
  std::int64_t layers = 1;
  double share = 1;
};
Edge edge_of(const model::ModelConfig& config);
TeamEstimate estimate_team_step(const MemoryPlan& plan, std::int64_t micro_batches, const Edge& edge,
                                const TeamShape& team, const Ceilings& ceilings, const NetworkRates& network);

}  // namespace inlay::train
