#pragma once

#include "ops/fp8.h"

// act = silu(gate) · up. gate_up is [T, 2·I]: gate in the first I columns, up in the others.
namespace inlay::ops {

void swiglu_forward(Exec& exec, View act, ConstView gate_up);

// Writes dgate_up (may be gate_up itself) and, where `act` is given, the activation once more for the weight gradient
// of the layer behind it (act may be dact itself).
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up);

// The same, rounded to gate_up's dtype as there, for products in fp8 alone: act, and both parts of dgate_up, are
// written as such operands, every form that is there. One pass over memory where blocks of 128 have scales of their
// own.
void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up);
void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void swiglu_forward(Exec& exec, View act, ConstView gate_up);
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up);
}  // namespace cpu

namespace cuda {
void swiglu_forward(Exec& exec, View act, ConstView gate_up);
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up);
// In bf16, with scales by blocks of 128, and a multiple of 128 columns.
void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up);
void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up);
}  // namespace cuda

}  // namespace inlay::ops
