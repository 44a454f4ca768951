#pragma once

#include <functional>
#include <memory>

#include "adapter/targets.h"
#include "osft/layout.h"
#include "weights/kind.h"

namespace inlay::adapter {

// What a matrix is beneath its adapter, where it does not train: dense, or quantised.
using BaseKind = std::function<std::shared_ptr<const weights::WeightKind>(const weights::Parameter&)>;

struct AdapterDropout {
  double probability = 0;
  std::uint64_t seed = 0;
};

// What an adapter begins with and keeps to.
struct AdapterBeginning {
  const osft::OsftLayout* free = nullptr;  // the directions of its inputs; null: any
  bool pissa = false;                      // at the largest directions of the base, which are taken out of it
};

// The kinds of a model's matrices under an adapter: those of targets.parts get one, those of targets.saved train as a
// whole, nothing else trains.
weights::WeightPlan weight_plan(const AdapterTargets& targets, const model::ModelConfig& config, const BaseKind& base,
                                const AdapterDropout& dropout, const AdapterBeginning& beginning = {});

}  // namespace inlay::adapter
