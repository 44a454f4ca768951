#pragma once

#include "weights/weight.h"

namespace inlay::weights {

// The same matrix of all experts of a layer. Every expert has a parameter and a weight of its own, of any kind. Where
// they can be multiplied by together nobody waits for the offsets; otherwise the host does, and goes through them one
// by one.
class ExpertWeights {
 public:
  ExpertWeights(Exec& exec, std::vector<Parameter>& parameters, const WeightFactory& make_weight);

  std::optional<GroupOperands> fp8() const { return group_->fp8(); }

  // Rows as WeightGroup has them.
  void forward(Exec& exec, View y, ConstView x, ConstView offsets, const ops::Call& call) {  // y = x Wᵀ
    group_->forward(exec, y, Grad::overwrite, x, offsets, call);
  }
  void backward_input(Exec& exec, View dx, ConstView dy, ConstView offsets, const ops::Call& call) {  // dx = dy W
    group_->backward_input(exec, dx, Grad::overwrite, dy, offsets, call);
  }
  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) {  // += dyᵀ x
    group_->accumulate(exec, dy, x, offsets, call);
  }

  // Both of these; dx may lie where x does.
  void backward(Exec& exec, View dx, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) {
    group_->backward(exec, dx, Grad::overwrite, dy, x, offsets, call);
  }

 private:
  std::vector<std::unique_ptr<Weight>> weights_;
  std::unique_ptr<WeightGroup> group_;
};

}  // namespace inlay::weights
