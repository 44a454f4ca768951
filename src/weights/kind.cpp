#include "weights/kind.h"

#include "weights/dense.h"

namespace inlay::weights {

const WeightKind& WeightPlan::of(const Parameter& parameter) const {
  static const DenseKind dense;
  const auto found = kinds.find(parameter.name);
  if (found != kinds.end()) return *found->second;
  return others != nullptr ? *others : dense;
}

}  // namespace inlay::weights
