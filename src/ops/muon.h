#pragma once

#include "ops/check.h"

// Muon: a matrix changes by its momentum made orthogonal, so that all its directions move alike.
namespace inlay::ops {

// The momentum takes the gradient in, and the gradient becomes Nesterov's direction. With g = grad · grad_scale:
//   m += (g - m) · (1 - momentum);  grad = g + (m - g) · momentum
// grad is fp32, m fp32 or bf16, both contiguous; grad_scale (fp32 [1] on the device) may be absent.
void muon_momentum(Exec& exec, View grad, View m, ConstView grad_scale, float momentum);

// x = factor · U·Vᵀ of x = U·S·Vᵀ, nearly: five steps of Newton and Schulz with bf16 products, which take singular
// values to between about 0.7 and 1.2. x is fp32 [R, C], contiguous. A matrix of zeros stays one.
void orthogonalise(Exec& exec, View x, float factor);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// normalise: to (bf16) = from / max(√square_sum, 1e-7), square_sum fp64 [1].
namespace cpu {
void muon_momentum(Exec& exec, View grad, View m, ConstView grad_scale, float momentum);
void normalise(Exec& exec, View to, ConstView from, ConstView square_sum);
}  // namespace cpu

namespace cuda {
void muon_momentum(Exec& exec, View grad, View m, ConstView grad_scale, float momentum);
void normalise(Exec& exec, View to, ConstView from, ConstView square_sum);
}  // namespace cuda

}  // namespace inlay::ops
