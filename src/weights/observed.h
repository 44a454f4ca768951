#pragma once

#include <functional>

#include "weights/dense.h"

namespace inlay::weights {

// A dense weight whose inputs somebody looks at while the model runs: calibration needs no hooks in the layers.
class ObservedWeight final : public ops::Linear {
 public:
  explicit ObservedWeight(Parameter& parameter) : parameter_(&parameter), dense_(parameter) {}

  std::int64_t in_features() const override { return dense_.in_features(); }
  std::int64_t out_features() const override { return dense_.out_features(); }
  bool trainable() const override { return false; }
  // Whoever looks must see the inputs of this weight alone.
  ConstView matrix() const override { return observe ? ConstView() : dense_.matrix(); }
  void forward(Exec& exec, View y, ConstView x) override {
    if (observe) observe(exec, x);
    dense_.forward(exec, y, x);
  }
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) override {
    dense_.backward_input(exec, dx, mode, dy, device_alpha);
  }
  void accumulate(Exec&, ConstView, ConstView, const float*) override {}

  const Parameter& parameter() const { return *parameter_; }

  std::function<void(Exec&, ConstView x)> observe;

 private:
  Parameter* parameter_;
  DenseWeight dense_;
};

}  // namespace inlay::weights
