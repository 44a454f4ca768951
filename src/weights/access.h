#pragma once

#include "weights/parameter.h"

namespace inlay::weights {

// Asked before and after a layer's weights are used. Where they live elsewhere (host memory, other ranks), acquire
// starts or awaits their coming and release lets the buffer be reused; prefetching is acquiring one layer ahead.
class WeightAccess {
 public:
  virtual ~WeightAccess() = default;
  virtual void acquire(Exec& exec, std::int64_t layer) = 0;
  virtual void release(Exec& exec, std::int64_t layer) = 0;
};

// Weights that are always there.
class ResidentWeights final : public WeightAccess {
 public:
  void acquire(Exec&, std::int64_t) override {}
  void release(Exec&, std::int64_t) override {}
};

}  // namespace inlay::weights
