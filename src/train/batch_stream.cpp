#include "train/batch_stream.h"

#include <cmath>

#include "core/interrupt.h"

namespace inlay::train {

std::vector<PackedBatch> BatchStream::next_step(std::int64_t accumulation) {
  std::vector<PackedBatch> micro_batches;
  if (batch_ >= sampler_.batches_per_epoch(epoch_)) {
    ++epoch_;
    batch_ = 0;
  }
  const std::int64_t left = sampler_.batches_per_epoch(epoch_) - batch_;
  for (std::int64_t i = 0; i < std::min(accumulation, left); ++i) {
    micro_batches.push_back(pack(data::take_batch(sampler_, documents_, epoch_, batch_++)));
  }
  return micro_batches;
}

namespace {

std::int64_t steps_per_epoch(const data::BatchSampler& sampler, std::int64_t epoch, std::int64_t accumulation) {
  return (sampler.batches_per_epoch(epoch) + accumulation - 1) / accumulation;
}

}  // namespace

std::int64_t total_steps(const options::TrainOptions& o, const data::BatchSampler& sampler) {
  if (o.max_steps > 0) return o.max_steps;
  std::int64_t steps = 0;
  const auto whole = static_cast<std::int64_t>(std::floor(o.num_epochs));
  // Only shuffled documents that are packed make more or fewer batches from epoch to epoch.
  const bool varies = o.shuffle && o.sample_packing;
  for (std::int64_t epoch = 0; epoch < (varies ? whole : std::min<std::int64_t>(whole, 1)); ++epoch) {
    stop_where_asked("counting the steps of all epochs");
    steps += steps_per_epoch(sampler, epoch, o.gradient_accumulation_steps);
  }
  if (!varies) steps *= whole;
  const double rest = o.num_epochs - static_cast<double>(whole);
  if (rest > 0) {
    steps += static_cast<std::int64_t>(
        std::ceil(rest * static_cast<double>(steps_per_epoch(sampler, whole, o.gradient_accumulation_steps))));
  }
  return std::max<std::int64_t>(steps, 1);
}

}  // namespace inlay::train
