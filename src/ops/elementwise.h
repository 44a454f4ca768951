#pragma once

#include "ops/check.h"

namespace inlay::ops {

// y[t] += bias, y [T, N], bias [N], same dtype.
void add_bias(Exec& exec, View y, ConstView bias);
// dbias (fp32 [N]) = or += column sums of dy, in a fixed order.
void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy);
// y += x.
void add(Exec& exec, View y, ConstView x);
// y = factor · x, rounded once; y may be x itself.
void scale(Exec& exec, View y, ConstView x, float factor);
// x = cap · tanh(x / cap), fp32.
void softcap(Exec& exec, View x, float cap);
// Copies with conversion between fp64, fp32, bf16 and fp16; shapes equal, rows may be strided. From fp64 to the 16-bit
// dtypes it rounds to fp32 on the way.
void cast(Exec& exec, View to, ConstView from);
// x[i] *= factors[i], x [R, C], factors [R], both fp32 or both fp64.
void scale_rows(Exec& exec, View x, ConstView factors);
// to[i] = from[rows[i]]: rows int32 [n] on the device, to [n, H].
void gather_rows(Exec& exec, View to, ConstView from, ConstView rows);
// to[rows[i]] = from[i], every other row of `to` is cleared. rows ascend.
void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// scratch: fp32 [min(T, 512), N] for partial column sums. scatter_rows clears the other rows itself (n may be 0).
namespace cpu {
void add_bias(Exec& exec, View y, ConstView bias);
void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, View scratch);
void add(Exec& exec, View y, ConstView x);
void scale(Exec& exec, View y, ConstView x, float factor);
void softcap(Exec& exec, View x, float cap);
void cast(Exec& exec, View to, ConstView from);
void scale_rows(Exec& exec, View x, ConstView factors);
void gather_rows(Exec& exec, View to, ConstView from, ConstView rows);
void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows);
}  // namespace cpu

namespace cuda {
void add_bias(Exec& exec, View y, ConstView bias);
void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, View scratch);
void add(Exec& exec, View y, ConstView x);
void scale(Exec& exec, View y, ConstView x, float factor);
void softcap(Exec& exec, View x, float cap);
void cast(Exec& exec, View to, ConstView from);
void scale_rows(Exec& exec, View x, ConstView factors);
void gather_rows(Exec& exec, View to, ConstView from, ConstView rows);
void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows);
}  // namespace cuda

}  // namespace inlay::ops
