#pragma once

#include "ops/fp8.h"
#include "ops/moe_permute.h"

// The gated activation inside the experts, on rows sorted by expert: act [S, I] from gate_up [S, 2·I].
namespace inlay::ops {

enum class Glu : std::uint8_t {
  silu,     // silu(gate) · up: gate in the first I columns, up in the others
  clamped,  // (up + 1) · gate · sigmoid(1.702 gate): columns alternate gate, up; gate at most 7, up within ±7
};
inline constexpr float glu_limit = 7.0f, glu_slope = 1.702f;

// What the rows need to know besides their numbers. order is the sorted order, experts [T, k] what it was made from.
struct ExpertRows {
  Glu kind = Glu::silu;
  ConstView bias;     // [E, 2·I] in the rows' dtype, added to gate_up before the activation; absent: none
  ConstView experts;  // int32 [T, k], where there is a bias
  ExpertOrder order;
};

void expert_glu_forward(Exec& exec, View act, ConstView gate_up, const ExpertRows& rows);

// dact is the gradient of the experts' outputs taken back through the down product, before the pair's weight w:
// dgate_up = the gradient of w · act through gate_up (may be gate_up itself), act = w · activation, for down's weight
// gradient (may be dact itself), dweights[pair] += activation · dact. The bias's gradient is that of dgate_up's rows.
struct ExpertGluGrads {
  View dgate_up, act;
  View dweights;  // fp32 [T, k]
};
void expert_glu_backward(Exec& exec, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows);

// The same, rounded to gate_up's dtype as there, as operands of products in fp8: every form that is there. gate_up,
// dact and the biases begin, as do their rows, at multiples of 16 bytes.
void expert_glu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, const ExpertRows& rows);
// What is absent of grads is wanted in its forms alone; gate_up and dact are room, and hold anything afterwards.
struct ExpertGluForms {
  Fp8Forms dgate_up, act;
  View dbias;  // fp32 [E, 2·I] = or += the sums of dgate_up's rows, in a fixed order
  Grad dbias_mode = Grad::skip;
};
void expert_glu_backward_fp8(Exec& exec, const ExpertGluForms& forms, const ExpertGluGrads& grads, View dact,
                             View gate_up, ConstView weights, const ExpertRows& rows);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void expert_glu_forward(Exec& exec, View act, ConstView gate_up, const ExpertRows& rows);
void expert_glu_backward(Exec& exec, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows);
}  // namespace cpu

// The bias's gradient is summed over so many rows of an expert first.
inline constexpr std::int64_t expert_glu_slice = 64;

namespace cuda {
// In bf16, with scales by blocks; whole vectors of activations, and whole blocks of them where gate and up lie in
// halves. scratch: fp32 [blocks of 128 activations, S], and [slices + E, 2·I] where the bias has a gradient.
struct ExpertGluScratch {
  View dweights, dbias;
};
void expert_glu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, const ExpertRows& rows);
void expert_glu_backward_fp8(Exec& exec, const ExpertGluForms& forms, View dweights, ConstView dact, ConstView gate_up,
                             ConstView weights, const ExpertRows& rows, const ExpertGluScratch& scratch);
void expert_glu_forward(Exec& exec, View act, ConstView gate_up, const ExpertRows& rows);
void expert_glu_backward(Exec& exec, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows);
}  // namespace cuda

}  // namespace inlay::ops
