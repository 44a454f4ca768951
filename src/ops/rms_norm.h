#pragma once

#include "ops/check.h"

// RMS normalisation over the last axis: y = x / sqrt(mean(x²) + eps) · (offset + weight). Rows are any leading axes
// ([T, H], or [T, heads, D] with strided tokens). Statistics are fp32. The reciprocal root is not stored: the backward
// pass reads the row anyway, and gets it from the same pass.
namespace inlay::ops {

struct NormSpec {
  NormSpec(float epsilon, float weight_offset = 0)
      : eps(epsilon), offset(weight_offset) {}  // NOLINT: a plain eps will do
  float eps, offset;                            // an offset of 1 makes a weight of zeros the plain norm
};

// out may be x itself.
void rms_norm_forward(Exec& exec, View out, ConstView x, ConstView weight, NormSpec norm);

// sum = x + delta (rounded to the activation dtype), out = rms_norm(sum). sum may be x or delta itself.
void residual_rms_norm_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm);

struct RmsNormGrads {
  View dx;  // may be dout itself; with accumulate: += (the residual stream's gradient)
  Grad dx_mode = Grad::overwrite;
  View dweight;  // fp32
  Grad dweight_mode = Grad::skip;
};
void rms_norm_backward(Exec& exec, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// scratch: fp32 [min(rows, 512), H] for partial sums of dweight; absent where dweight is not wanted.
namespace cpu {
void rms_norm_forward(Exec& exec, View out, ConstView x, ConstView weight, NormSpec norm);
void residual_rms_norm_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm);
void rms_norm_backward(Exec& exec, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm,
                       View scratch);
}  // namespace cpu

namespace cuda {
void rms_norm_forward(Exec& exec, View out, ConstView x, ConstView weight, NormSpec norm);
void residual_rms_norm_forward(Exec& exec, View out, View sum, ConstView x, ConstView delta, ConstView weight,
                               NormSpec norm);
void rms_norm_backward(Exec& exec, RmsNormGrads grads, ConstView dout, ConstView x, ConstView weight, NormSpec norm,
                       View scratch);
}  // namespace cuda

}  // namespace inlay::ops
