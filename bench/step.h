#pragma once

#include "bench/bench.h"
#include "train/engine.h"

namespace inlay::bench {

struct StepArguments {
  std::int64_t documents = 1, length = 2048;
  int iterations = 10;
  bool mxfp4_experts = false;  // experts are loaded as such
};

// A training step of a model with random weights (and, under OSFT, random directions): time, peak, floor.
Report time_step(const model::ModelConfig& config, const train::EngineOptions& options, const StepArguments& shape);

}  // namespace inlay::bench
