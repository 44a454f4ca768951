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

double pass_seconds(const Work& work, const Ceilings& ceilings) {
  return std::max(compute_seconds(work, ceilings), std::max(work.to_device, work.to_host) / ceilings.link);
}

StepEstimate estimate_step(const MemoryPlan& plan, std::int64_t micro_batches, const Ceilings& ceilings) {
  const Work batch = plan.cost.micro_batch();
  const Work& update = plan.cost.of(StepPart::optimizer);
  StepEstimate result;
  result.compute_seconds = compute_seconds(batch, ceilings);
  result.recompute_seconds = compute_seconds(plan.cost.of(StepPart::recompute), ceilings);
  result.copy_seconds = std::max(batch.to_device, batch.to_host) / ceilings.link;
  result.optimizer_seconds = compute_seconds(update, ceilings) + update.host_bytes / ceilings.host +
                             std::max(update.to_device, update.to_host) / ceilings.link;
  result.micro_batch_seconds =
      pass_seconds(plan.cost.of(StepPart::forward), ceilings) +
      pass_seconds(plan.cost.of(StepPart::recompute) + plan.cost.of(StepPart::backward), ceilings);
  const auto batches = static_cast<double>(micro_batches);
  const double seconds = batches * result.micro_batch_seconds + result.optimizer_seconds;
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
