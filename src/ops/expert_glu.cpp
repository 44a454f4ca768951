#include "ops/expert_glu.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check(std::string_view op, const ConstView& act, const ConstView& gate_up, const ExpertRows& rows) {
  check_activation(op, "gate_up", gate_up);
  INLAY_ASSERT(gate_up.rank() == 2 && gate_up.dim(1) % 2 == 0, "{}: gate_up is {}, expected [S, 2·I]", op,
               gate_up.shape().str());
  check_shape(op, "the activation", act, {gate_up.dim(0), gate_up.dim(1) / 2});
  check_dtype(op, "the activation", act, gate_up.dtype());
  check_shape(op, "pairs", rows.order.pairs, {gate_up.dim(0)});
  check_dtype(op, "pairs", rows.order.pairs, DType::i32);
  if (rows.bias.absent()) return;
  check_shape(op, "bias", rows.bias, {rows.order.offsets.dim(0) - 1, gate_up.dim(1)});
  check_dtype(op, "bias", rows.bias, gate_up.dtype());
  check_dtype(op, "experts", rows.experts, DType::i32);
  INLAY_ASSERT(rows.experts.shape().size() == gate_up.dim(0) && rows.experts.contiguous(),
               "{}: experts are {} for {} rows", op, rows.experts.shape().str(), gate_up.dim(0));
}

}  // namespace

void expert_glu_forward(Exec& exec, View act, ConstView gate_up, const ExpertRows& rows) {
  check("expert_glu_forward", act, gate_up, rows);
  exec.count_bytes({gate_up, act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::expert_glu_forward(exec, act, gate_up, rows);
  cpu::kernels().expert_glu_forward(exec, act, gate_up, rows);
}

void expert_glu_backward(Exec& exec, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows) {
  constexpr std::string_view op = "expert_glu_backward";
  check(op, dact, gate_up, rows);
  check(op, grads.act, gate_up, rows);
  check_shape(op, "dgate_up", grads.dgate_up, gate_up.shape());
  check_dtype(op, "dgate_up", grads.dgate_up, gate_up.dtype());
  for (const ConstView& view : {weights, ConstView(grads.dweights)}) {
    check_dtype(op, "weights or dweights", view, DType::f32);
    INLAY_ASSERT(view.shape().size() == gate_up.dim(0) && view.contiguous(), "{}: weights of {} for {} rows", op,
                 view.shape().str(), gate_up.dim(0));
  }
  exec.count_bytes({dact, gate_up, grads.dgate_up, grads.act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::expert_glu_backward(exec, grads, dact, gate_up, weights, rows);
  cpu::kernels().expert_glu_backward(exec, grads, dact, gate_up, weights, rows);
}

void expert_glu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, const ExpertRows& rows) {
  const ScratchScope scope(exec.arena());
  View plain = exec.arena().scratch("mlp activation", gate_up.dtype(), {gate_up.dim(0), gate_up.dim(1) / 2});
  expert_glu_forward(exec, plain, gate_up, rows);
  quantise_fp8(exec, act, plain);
}

void expert_glu_backward_fp8(Exec& exec, const ExpertGluForms& forms, const ExpertGluGrads& grads, View dact,
                             View gate_up, ConstView weights, const ExpertRows& rows) {
  const ExpertGluGrads plain{.dgate_up = grads.dgate_up.absent() ? gate_up : grads.dgate_up,
                             .act = grads.act.absent() ? dact : grads.act,
                             .dweights = grads.dweights};
  expert_glu_backward(exec, plain, dact, gate_up, weights, rows);
  quantise_fp8(exec, forms.dgate_up, plain.dgate_up);
  quantise_fp8(exec, forms.act, plain.act);
}

}  // namespace inlay::ops
