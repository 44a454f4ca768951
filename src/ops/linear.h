#pragma once

#include "backend/matmul.h"
#include "ops/check.h"

namespace inlay::ops {

// y = x · Wᵀ as its users see it. Whoever owns W decides what its gradient is (weights/): a layer never forms dW.
// `device_alpha`, where given, is a factor in device memory (loss normalisation, an upstream gradient).
class Linear {
 public:
  virtual ~Linear() = default;
  virtual std::int64_t in_features() const = 0;
  virtual std::int64_t out_features() const = 0;
  virtual void forward(Exec& exec, View y, ConstView x) = 0;  // y = x Wᵀ
  // dx = or += dy W
  virtual void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha = nullptr) = 0;
  // the gradient of W += dyᵀ x
  virtual void accumulate(Exec& exec, ConstView dy, ConstView x, const float* device_alpha = nullptr) = 0;
  virtual bool trainable() const = 0;  // accumulate() does something
  // W [out, in] as it stands, where forward and backward_input are plain products with it: many such weights can be
  // multiplied by at once. Absent where they are something else.
  virtual ConstView matrix() const { return {}; }
};

}  // namespace inlay::ops
