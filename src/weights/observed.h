#pragma once

#include <functional>

#include "weights/dense.h"

namespace inlay::weights {

// A dense weight whose inputs somebody looks at while the model runs: calibration needs no hooks in the layers.
class ObservedWeight final : public DenseWeight {
 public:
  using DenseWeight::DenseWeight;

  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override {
    if (observe) observe(exec, x);
    DenseWeight::forward(exec, y, mode, x, call);
  }
  // Whoever looks must see the inputs of this weight alone.
  std::unique_ptr<WeightGroup> group(std::span<Weight* const>) override { return nullptr; }
  bool multiplies_plainly() const override { return false; }

  std::function<void(Exec&, ConstView x)> observe;
};

// Makes them, and remembers them in the order of their making.
class ObservedKind final : public WeightKind {
 public:
  explicit ObservedKind(std::vector<ObservedWeight*>& made) : made_(&made) {}
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override {
    allocate_value(exec, parameter, memory.compute);
    auto weight = std::make_unique<ObservedWeight>(parameter);
    made_->push_back(weight.get());
    return weight;
  }
  std::string describe() const override { return "observed"; }

 private:
  std::vector<ObservedWeight*>* made_;
};

}  // namespace inlay::weights
