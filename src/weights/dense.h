#pragma once

#include <functional>
#include <memory>
#include <span>

#include "ops/linear.h"
#include "weights/parameter.h"

namespace inlay::weights {

// Makes the weight of a matrix whose value has memory already.
using WeightFactory = std::function<std::unique_ptr<ops::Linear>(Exec&, Parameter&)>;

// A plain matrix [out, in]. Frozen where the parameter has no gradient: accumulate() then does nothing.
class DenseWeight final : public ops::Linear {
 public:
  explicit DenseWeight(Parameter& parameter) : parameter_(&parameter) {}

  std::int64_t in_features() const override { return parameter_->shape[1]; }
  std::int64_t out_features() const override { return parameter_->shape[0]; }
  bool trainable() const override { return parameter_->trainable && !parameter_->grad.absent(); }
  ConstView matrix() const override { return parameter_->value; }

  void forward(Exec& exec, View y, ConstView x) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) override;
  void accumulate(Exec& exec, ConstView dy, ConstView x, const float* device_alpha) override;

  // accumulate() of weights that share rows, each its own (backend/grouped_matmul.h). All were written before in this
  // step, or none.
  static void accumulate_group(Exec& exec, std::span<DenseWeight* const> group, ConstView dy, ConstView x,
                               ConstView offsets);

 private:
  Parameter* parameter_;
};

}  // namespace inlay::weights
