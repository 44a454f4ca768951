#include "train/step_time.h"

#include <algorithm>

namespace inlay::train {

namespace {

using backend::StepPart;
using backend::Work;

double compute_seconds(const Work& work, const Ceilings& ceilings) {
  return ceilings.product_seconds(work) + work.attention / ceilings.attention + work.bytes / ceilings.memory;
}

}  // namespace

StepEstimate estimate_step(const MemoryPlan& plan, std::int64_t micro_batches, const Ceilings& ceilings) {
  const Work batch = plan.cost.micro_batch();
  const Work& update = plan.cost.of(StepPart::optimizer);
  StepEstimate result;
  result.compute_seconds = compute_seconds(batch, ceilings);
  result.recompute_seconds = compute_seconds(plan.cost.of(StepPart::recompute), ceilings);
  result.copy_seconds = std::max(batch.to_device, batch.to_host) / ceilings.link;
  result.optimizer_seconds = compute_seconds(update, ceilings) + update.host_bytes / ceilings.host +
                             std::max(update.to_device, update.to_host) / ceilings.link;
  const auto batches = static_cast<double>(micro_batches);
  const double seconds = batches * std::max(result.compute_seconds, result.copy_seconds) + result.optimizer_seconds;
  result.tokens_per_second = batches * plan.batch.tokens / seconds;
  return result;
}

double model_flops(const MemoryPlan& plan, const std::vector<PackedBatch>& micro_batches) {
  const Work model = plan.cost.model();
  BatchExtent real;
  for (const PackedBatch& batch : micro_batches) {
    const BatchExtent extent = extent_of(batch);
    real.tokens += extent.tokens;
    real.squares += extent.squares;
  }
  return model.product_flops() * real.tokens / plan.batch.tokens + model.attention * real.squares / plan.batch.squares;
}

}  // namespace inlay::train
