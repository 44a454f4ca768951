#pragma once

#include "weights/parameter.h"

namespace inlay::weights {

enum class Pass : std::uint8_t { forward, backward };

// Asked before and after a layer's weights are used. Where they live elsewhere (host memory, other ranks), acquire
// awaits their coming and release lets the buffer be reused and begins to bring the next ones.
class WeightAccess {
 public:
  virtual ~WeightAccess() = default;
  virtual void acquire(Exec& exec, std::int64_t layer, Pass pass) = 0;
  virtual void release(Exec& exec, std::int64_t layer, Pass pass) = 0;
};

// Weights that are always there.
class ResidentWeights final : public WeightAccess {
 public:
  void acquire(Exec&, std::int64_t, Pass) override {}
  void release(Exec&, std::int64_t, Pass) override {}
};

}  // namespace inlay::weights
