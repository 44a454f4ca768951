#pragma once

#include <vector>

#include "core/batch.h"
#include "data/sampler.h"
#include "options/train_options.h"

namespace inlay::train {

// A run's micro-batches, step after step and epoch after epoch.
class BatchStream {
 public:
  BatchStream(const data::BatchSampler& sampler, const data::Documents& documents, std::int64_t epoch,
              std::int64_t batch)
      : sampler_(sampler), documents_(documents), epoch_(epoch), batch_(batch) {}

  // The micro-batches of an optimizer step: so many, or what is left of the epoch, so that a step never mixes epochs.
  std::vector<PackedBatch> next_step(std::int64_t accumulation);
  // The next micro-batch.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t batch() const { return batch_; }

 private:
  const data::BatchSampler& sampler_;
  const data::Documents& documents_;
  std::int64_t epoch_, batch_;
};

// Optimizer steps of a whole run. Ctrl-C is heard where many epochs must be counted.
std::int64_t total_steps(const options::TrainOptions& options, const data::BatchSampler& sampler);

}  // namespace inlay::train
