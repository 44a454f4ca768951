#pragma once

#include <string>

#include "data/sampler.h"
#include "options/train_options.h"

namespace inlay::train {

// How long a run is, as far as that is known before it begins.
struct RunLength {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;  // about: which documents its last epoch reaches, only that epoch tells; 0: unknown
  double epochs = 0;        // 0: unknown
  double seconds = 0;       // of the steps alone; 0: unknown
};

// Of so many micro-batches per step; tokens_per_second as a plan expects it, 0 where it does not.
RunLength run_length(std::int64_t steps, const data::BatchSampler& sampler, std::int64_t micro_batches,
                     double tokens_per_second);

// "600 steps over 3 epochs, about 9,830,400 tokens, about 1h 20m without evaluations and checkpoints"
std::string text_of(const RunLength& length);

}  // namespace inlay::train
