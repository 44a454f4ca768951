#include "adapter/weight_plan.h"

#include <map>

#include "weights/lora.h"

namespace inlay::adapter {

namespace {

// Adapters of one matrix share their input, and with it the directions.
void keep_to(weights::LoraLayout& layout, const osft::OsftLayout& directions, const AdaptedPart& part) {
  const auto* ranks = directions.find(part.parameter);
  INLAY_ASSERT(ranks != nullptr, "no directions for {}", part.parameter);
  layout.inputs = std::get<weights::InputLayout>(*ranks);
  layout.place = directions.place;
  if (part.rank > layout.inputs->free) {
    user_error("lora_free_ratio: of the {} directions that {} takes in, it leaves {} free, fewer than lora_r: {}",
               part.in, part.module, layout.inputs->free, part.rank);
  }
}

std::map<std::string, weights::LoraLayout> layouts(const AdapterTargets& targets, const AdapterDropout& dropout,
                                                   const AdapterBeginning& beginning) {
  std::map<std::string, weights::LoraLayout> result;
  for (const AdaptedPart& part : targets.parts) {
    weights::LoraLayout& layout = result[part.parameter];
    layout.dropout = dropout.probability;
    layout.seed = dropout.seed;
    layout.dora = targets.dora;
    layout.pissa = beginning.pissa;
    if (beginning.free != nullptr) keep_to(layout, *beginning.free, part);
    layout.parts.push_back({.row = part.row, .rows = part.out, .rank = part.rank, .scale = part.scale});
  }
  return result;
}

}  // namespace

weights::WeightPlan weight_plan(const AdapterTargets& targets, const model::ModelConfig& config, const BaseKind& base,
                                const AdapterDropout& dropout, const AdapterBeginning& beginning) {
  std::set<std::string> saved;
  for (const SavedPart& part : targets.saved) saved.insert(part.parameter);
  const std::map<std::string, weights::LoraLayout> adapted = layouts(targets, dropout, beginning);
  weights::WeightPlan plan;
  model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
    if (saved.contains(p.name)) return;
    plan.frozen.insert(p.name);
    if (!p.is_matrix()) return;
    const auto found = adapted.find(p.name);
    plan.kinds[p.name] = found == adapted.end() ? base(p) : std::make_shared<weights::LoraKind>(found->second, base(p));
  });
  return plan;
}

}  // namespace inlay::adapter
