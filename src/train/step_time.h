#pragma once

#include <vector>

#include "train/ceilings.h"
#include "train/engine.h"

// How long a step will take, from what the machine can do and what the plan has counted.
namespace inlay::train {

// A pass's kernels and the copies beside them: the larger of the two counts. A disk is taken to be as fast as the link.
double pass_seconds(const backend::Work& work, const Ceilings& ceilings);

// Of one micro-batch as large as the options allow, there and back, and of the optimizer.
struct StepEstimate {
  double compute_seconds = 0;    // one micro-batch: products, attention, the rest by its bytes; with recomputation
  double recompute_seconds = 0;  // the part of it that is done a second time
  double copy_seconds = 0;       // between host and device, the busier direction, beside these
  double micro_batch_seconds = 0;
  double optimizer_seconds = 0;
  double tokens_per_second = 0;
};
StepEstimate estimate_step(const MemoryPlan& plan, std::int64_t micro_batches, const Ceilings& ceilings);

// FLOPs of a step's micro-batches, there and back, without what is computed again: those of the plan, products by the
// tokens there are, and attention by the squares of the documents' lengths. So a step counts as if every token had a
// label, and attention within a window as if it grew as attention without one.
double model_flops(const MemoryPlan& plan, const std::vector<PackedBatch>& micro_batches);

}  // namespace inlay::train
