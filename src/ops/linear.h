#pragma once

#include <optional>

#include "ops/fp8.h"

namespace inlay::ops {

// What a product may need to know beside its operands.
struct Call {
  const float* device_alpha = nullptr;  // a factor in device memory (loss normalisation, an upstream gradient)
  // Of all rows that the layer works on, the number of the first of these: where rows are worked off in tiles,
  // randomness must not depend on how.
  std::int64_t first_row = 0;
  ConstView rows = {};  // int32, where they are in another order, as experts' are: row i is number first_row + rows[i]
  // The operands in fp8, where whoever made them has written them so; then the plain ones may be absent, but only to a
  // weight that reads nothing else (Linear::fp8).
  const Fp8Forms* x = nullptr;
  const Fp8Forms* dy = nullptr;
};

// Products that read their operands in fp8 alone: how these are to be written. dy is wanted in both forms.
struct Fp8Operands {
  Fp8Settings settings;
  Fp8Use gradient_input = Fp8Use::columns;  // the form of x that accumulate() reads
};

// y = x · Wᵀ as its users see it. Whoever owns W decides what its gradient is (weights/): a layer never forms dW.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual std::int64_t in_features() const = 0;
  virtual std::int64_t out_features() const = 0;
  // y = or += x Wᵀ; device_alpha is for the way back
  virtual void forward(Exec& exec, View y, Grad mode, ConstView x, const Call& call = {}) = 0;
  // dx = or += dy W
  virtual void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const Call& call = {}) = 0;
  // the gradient of W += dyᵀ x
  virtual void accumulate(Exec& exec, ConstView dy, ConstView x, const Call& call = {}) = 0;
  // Both of these, accumulate() first: dx may lie where x does.
  virtual void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, const Call& call = {}) {
    accumulate(exec, dy, x, call);
    backward_input(exec, dx, mode, dy, call);
  }
  virtual bool trainable() const = 0;  // accumulate() does something
  virtual std::optional<Fp8Operands> fp8() const { return std::nullopt; }
};

}  // namespace inlay::ops
