#pragma once

#include "ops/linear.h"

namespace inlay::testing {

// The plainest head there is: a matrix [V, H] and a gradient that may be of another dtype, added to by every call.
class DenseHead final : public ops::Linear {
 public:
  DenseHead(View weight, View grad) : weight_(weight), grad_(grad) {}

  std::int64_t in_features() const override { return weight_.dim(1); }
  std::int64_t out_features() const override { return weight_.dim(0); }
  bool trainable() const override { return !grad_.absent(); }

  void forward(backend::Exec& exec, View y, backend::Grad mode, ConstView x, const ops::Call&) override {
    backend::matmul(exec, y, x, backend::Transpose::no, weight_, backend::Transpose::yes,
                    {.beta = mode == backend::Grad::accumulate ? 1.0f : 0.0f});
  }
  void backward_input(backend::Exec& exec, View dx, backend::Grad mode, ConstView dy, const ops::Call& call) override {
    backend::matmul(exec, dx, dy, backend::Transpose::no, weight_, backend::Transpose::no,
                    {.beta = mode == backend::Grad::accumulate ? 1.0f : 0.0f, .device_alpha = call.device_alpha});
  }
  // grad +=
  void accumulate(backend::Exec& exec, ConstView dy, ConstView x, const ops::Call& call) override {
    ++accumulated;
    backend::matmul(exec, grad_, dy, backend::Transpose::yes, x, backend::Transpose::no,
                    {.beta = 1.0f, .device_alpha = call.device_alpha});
  }

  int accumulated = 0;

 private:
  View weight_, grad_;
};

}  // namespace inlay::testing
