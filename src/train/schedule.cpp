#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace inlay::train {

double Schedule::rate(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (decay == options::Decay::constant) return peak;
  const auto length = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  const double shape =
      decay == options::Decay::linear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (min_ratio + (1.0 - min_ratio) * shape);
}

Schedule schedule_of(const options::TrainOptions& o, std::int64_t steps) {
  Schedule schedule;
  schedule.decay = o.lr_scheduler;
  schedule.peak = o.learning_rate;
  schedule.total_steps = steps;
  schedule.min_ratio = schedule.decay == options::Decay::cosine ? o.cosine_min_lr_ratio : 0.0;
  schedule.warmup_steps = o.warmup_steps > 0
                              ? o.warmup_steps
                              : static_cast<std::int64_t>(std::ceil(o.warmup_ratio * static_cast<double>(steps)));
  return schedule;
}

options::TrainOptions in_steps(options::TrainOptions o, std::int64_t steps, double epoch_steps) {
  const auto resolve = [&](options::When& when, std::int64_t& every, double& share, double& per_epoch) {
    if (when == options::When::epoch) per_epoch = 1;
    if (share > 0) every = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(steps)));
    if (per_epoch > 0) every = std::max<std::int64_t>(1, std::llround(epoch_steps / per_epoch));
    if (when != options::When::best) when = options::When::steps;
    share = per_epoch = 0;
  };
  resolve(o.eval_strategy, o.eval_steps, o.eval_share, o.evals_per_epoch);
  resolve(o.save_strategy, o.save_steps, o.save_share, o.saves_per_epoch);
  return o;
}

}  // namespace inlay::train
