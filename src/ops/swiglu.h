#pragma once

#include "ops/fp8.h"

// act = f(gate) · up, f being silu (SwiGLU), tanh's approximation of gelu (GeGLU), or gelu itself. gate_up is [T, 2·I]:
// gate in the first I columns, up in the others. The first two are x · sigmoid(e(x)), with e(x) = x or
// √(8/π) (x + 0.044715 x³); gelu is x · Φ(x), Φ being the normal distribution's, and is on the CPU alone so far.
namespace inlay::ops {

enum class Gate : std::uint8_t { silu, gelu_tanh, gelu };
inline constexpr float gelu_linear = 1.5957691f, gelu_cubic = 0.071354814f;  // √(8/π), and 0.044715 of it

void swiglu_forward(Exec& exec, View act, ConstView gate_up, Gate gate = Gate::silu);

// Writes dgate_up (may be gate_up itself) and, where `act` is given, the activation once more for the weight gradient
// of the layer behind it (act may be dact itself).
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate = Gate::silu);

// The same, rounded to gate_up's dtype as there, for products in fp8 alone: act, and both parts of dgate_up, are
// written as such operands, every form that is there. One pass over memory where blocks of 128 have scales of their
// own.
void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, Gate gate = Gate::silu);
void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up,
                         Gate gate = Gate::silu);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void swiglu_forward(Exec& exec, View act, ConstView gate_up, Gate gate);
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate);
}  // namespace cpu

namespace cuda {
void swiglu_forward(Exec& exec, View act, ConstView gate_up, Gate gate);
void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate);
// silu in bf16, with scales by blocks of 128, and a multiple of 128 columns.
void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up);
void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up);
}  // namespace cuda

}  // namespace inlay::ops
