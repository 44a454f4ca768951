#pragma once

#include <memory>
#include <string>

#include "train/session.h"

namespace inlay::train {

// A run's engine with its base model in it, planned to fit, and under OSFT with its directions.
struct RunEngine {
  std::unique_ptr<Engine> engine;
  MemoryPlan plan;
  double peak = 0;                               // FLOP/s that a large product reaches here; 0: could not be measured
  double tokens_per_second = 0;                  // of all processes, as expected; 0: rates could not be measured
  std::string base_fingerprint;                  // of the base model's weights
  std::string basis_fingerprint;                 // of the directions that were found; empty without
  std::shared_ptr<const EngineAdapter> adapter;  // that it trains; null without
};

// Every process of the run calls it. Says what was chosen. UserError where nothing fits; Interrupted where Ctrl-C came
// while directions were found or weights loaded.
RunEngine make_run_engine(const options::TrainOptions& options, const model::ModelConfig& config,
                          const BatchBounds& bounds, Console& console,
                          const std::shared_ptr<parallel::Communicator>& ranks = parallel::single_process());

}  // namespace inlay::train
