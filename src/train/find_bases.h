#pragma once

#include <filesystem>

#include "train/basis_store.h"
#include "train/console.h"
#include "train/options.h"

namespace inlay::train {

// The layout of a run and the directions it learns in.
struct FoundBases {
  OsftLayout layout;
  BasisStore bases;
  std::size_t device_peak = 0;  // of the search; 0 where the cache had them
};

// Decomposes the weights or calibrates on text, as the options say, or takes what an earlier run left in the cache: it
// is keyed by the weights' contents and everything else that decides the outcome. Throws Interrupted
// (train/interrupt.h) where Ctrl-C came.
FoundBases find_bases(const TrainOptions& options, const model::ModelConfig& config, Device device, DType compute,
                      const StepShape& step, Console& console);

// Memory that the search will take, without doing any of it.
std::size_t plan_bases(const TrainOptions& options, const model::ModelConfig& config, Device device, DType compute,
                       const StepShape& step);

}  // namespace inlay::train
