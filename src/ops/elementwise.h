#pragma once

#include "ops/check.h"

namespace inlay::ops {

// y[t] += bias, y [T, N], bias [N], same dtype.
void add_bias(Exec& exec, View y, ConstView bias);
// dbias (fp32 [N]) = or += column sums of dy, in a fixed order.
void bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy);
// y += x.
void add(Exec& exec, View y, ConstView x);
// Copies with conversion between fp32, bf16 and fp16; shapes equal, rows may be strided.
void cast(Exec& exec, View to, ConstView from);
// to[i] = from[rows[i]]: rows int32 [n] on the device, to [n, H].
void gather_rows(Exec& exec, View to, ConstView from, ConstView rows);
// to[rows[i]] = from[i], every other row of `to` is cleared. rows ascend.
void scatter_rows(Exec& exec, View to, ConstView from, ConstView rows);

}  // namespace inlay::ops
