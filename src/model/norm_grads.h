#pragma once

#include "ops/rms_norm.h"
#include "weights/parameter.h"

namespace inlay::model {

// Where the gradients of a norm go: dx as the mode says, and those of its weight.
inline ops::RmsNormGrads norm_grads(View dx, backend::Grad mode, weights::Parameter& weight) {
  return {.dx = dx, .dx_mode = mode, .dweight = weight.grad, .dweight_mode = weight.next_grad_mode()};
}

}  // namespace inlay::model
