#pragma once

#include <string>

#include "train/engine.h"

// How long a step will take, from what the machine can do and what the step must do.
namespace inlay::train {

// Rates that large pieces of work reach.
struct Ceilings {
  double matmul = 0;     // FLOP/s of a large product in the compute dtype
  double attention = 0;  // FLOP/s of causal attention, there and back
  double memory = 0;     // bytes/s of the device's memory, read and written
  double link = 0;       // bytes/s between host and device, each way
  double host = 0;       // bytes/s of the host's memory under AdamW
  std::string source;    // "measured now", or where they were measured
};
// Measures them in about a second; without the device, those of an H200 (docs/numbers.md).
Ceilings measure_ceilings(Device device, DType compute);

// Of one micro-batch as large as the options allow, and of the optimizer. Copies run beside the kernels, so the larger
// of the two counts.
struct StepEstimate {
  double compute_seconds = 0;    // one micro-batch: products, attention, the rest by its bytes; with recomputation
  double recompute_seconds = 0;  // the part of it that is done a second time
  double copy_seconds = 0;       // between host and device, the busier direction
  double optimizer_seconds = 0;
  double tokens_per_second = 0;
};
StepEstimate estimate_step(const model::ModelConfig& config, const EngineOptions& options, const MemoryPlan& plan,
                           std::int64_t micro_batches, const Ceilings& ceilings);

}  // namespace inlay::train
