#pragma once

#include <cstdint>

#include "options/train_options.h"

namespace inlay::train {

// The learning rate of every optimizer step: a linear warm-up from zero, then constant, linear to zero, or half a
// cosine down to min_ratio of the peak.
struct Schedule {
  options::Decay decay = options::Decay::cosine;
  double peak = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;
  double min_ratio = 0;

  // step counts from 0.
  double rate(std::int64_t step) const;
};

// As the options say, over so many steps.
Schedule schedule_of(const options::TrainOptions& options, std::int64_t steps);

// The options with eval_steps and save_steps in whole steps, whichever keys say when: of a run of so many steps, so
// many of them per epoch.
options::TrainOptions in_steps(options::TrainOptions options, std::int64_t steps, double epoch_steps);

}  // namespace inlay::train
