#include "ops/expert_glu.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_input(std::string_view op, const ConstView& gate_up, const ExpertRows& rows) {
  check_activation(op, "gate_up", gate_up);
  INLAY_ASSERT(gate_up.rank() == 2 && gate_up.dim(1) % 2 == 0, "{}: gate_up is {}, expected [S, 2·I]", op,
               gate_up.shape().str());
  check_shape(op, "pairs", rows.order.pairs, {gate_up.dim(0)});
  check_dtype(op, "pairs", rows.order.pairs, DType::i32);
  if (rows.bias.absent()) return;
  check_shape(op, "bias", rows.bias, {rows.order.offsets.dim(0) - 1, gate_up.dim(1)});
  check_dtype(op, "bias", rows.bias, gate_up.dtype());
  check_dtype(op, "experts", rows.experts, DType::i32);
  INLAY_ASSERT(rows.experts.shape().size() == gate_up.dim(0) && rows.experts.contiguous(),
               "{}: experts are {} for {} rows", op, rows.experts.shape().str(), gate_up.dim(0));
}

void check(std::string_view op, const ConstView& act, const ConstView& gate_up, const ExpertRows& rows) {
  check_input(op, gate_up, rows);
  check_shape(op, "the activation", act, {gate_up.dim(0), gate_up.dim(1) / 2});
  check_dtype(op, "the activation", act, gate_up.dtype());
}

void check_weights(std::string_view op, const ConstView& weights, const ConstView& gate_up) {
  check_dtype(op, "weights or dweights", weights, DType::f32);
  INLAY_ASSERT(weights.shape().size() == gate_up.dim(0) && weights.contiguous(), "{}: weights of {} for {} rows", op,
               weights.shape().str(), gate_up.dim(0));
}

// Whether kernels write codes and nothing else: in bf16, where blocks know their own scales, and every tile of 128
// columns lies in one half of gate_up where it has halves.
bool without_storing(const Exec& exec, const Fp8Forms& forms, const ConstView& gate_up, const ExpertRows& rows) {
  const Fp8Scaling scaling = (forms.rows.absent() ? forms.columns : forms.rows).scaling;
  const std::int64_t unit = rows.kind == Glu::silu ? backend::fp8_block : 8;
  return exec.on_cuda() && gate_up.dtype() == DType::bf16 && gate_up.dim(1) / 2 % unit == 0 &&
         (scaling == Fp8Scaling::vector || scaling == Fp8Scaling::square);
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
  check_weights(op, weights, gate_up);
  check_weights(op, grads.dweights, gate_up);
  exec.count_bytes({dact, gate_up, grads.dgate_up, grads.act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::expert_glu_backward(exec, grads, dact, gate_up, weights, rows);
  cpu::kernels().expert_glu_backward(exec, grads, dact, gate_up, weights, rows);
}

void expert_glu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, const ExpertRows& rows) {
  if (!without_storing(exec, act, gate_up, rows)) {
    const ScratchScope scope(exec.arena());
    View plain = exec.arena().scratch("mlp activation", gate_up.dtype(), {gate_up.dim(0), gate_up.dim(1) / 2});
    expert_glu_forward(exec, plain, gate_up, rows);
    return quantise_fp8(exec, act, plain);
  }
  check_input("expert_glu_forward_fp8", gate_up, rows);
  exec.count_bytes({gate_up, act.rows.codes, act.columns.codes});
  if (!exec.planning() && gate_up.size() != 0) cuda::expert_glu_forward_fp8(exec, act, gate_up, rows);
}

void expert_glu_backward_fp8(Exec& exec, const ExpertGluForms& forms, const ExpertGluGrads& grads, View dact,
                             View gate_up, ConstView weights, const ExpertRows& rows) {
  constexpr std::string_view op = "expert_glu_backward_fp8";
  if (!grads.dgate_up.absent() || !grads.act.absent() || !without_storing(exec, forms.dgate_up, gate_up, rows)) {
    const ExpertGluGrads plain{.dgate_up = grads.dgate_up.absent() ? gate_up : grads.dgate_up,
                               .act = grads.act.absent() ? dact : grads.act,
                               .dweights = grads.dweights};
    expert_glu_backward(exec, plain, dact, gate_up, weights, rows);
    quantise_fp8(exec, forms.dgate_up, plain.dgate_up);
    quantise_fp8(exec, forms.act, plain.act);
    return moe_bias_backward(exec, forms.dbias, forms.dbias_mode, plain.dgate_up, {}, rows.order);
  }
  check(op, dact, gate_up, rows);
  check_weights(op, weights, gate_up);
  check_weights(op, grads.dweights, gate_up);
  const std::int64_t pairs = gate_up.dim(0), width = gate_up.dim(1) / 2, experts = rows.order.offsets.dim(0) - 1;
  const ScratchScope scope(exec.arena());
  const auto sums = [&](std::string_view name, std::int64_t r, std::int64_t c) {
    return exec.arena().scratch(name, DType::f32, {r, c});
  };
  cuda::ExpertGluScratch scratch{
      .dweights = sums("partial sums of dweights", (width + backend::fp8_block - 1) / backend::fp8_block, pairs)};
  if (forms.dbias_mode != Grad::skip) {
    check_shape(op, "dbias", forms.dbias, {experts, 2 * width});
    check_dtype(op, "dbias", forms.dbias, DType::f32);
    scratch.dbias =
        sums("partial sums of dbias", (pairs + expert_glu_slice - 1) / expert_glu_slice + experts, 2 * width);
  }
  exec.count_bytes({dact, gate_up, forms.dgate_up.rows.codes, forms.dgate_up.columns.codes, forms.act.columns.codes,
                    scratch.dweights, scratch.dbias});
  if (exec.planning()) return;
  if (pairs == 0) {
    if (forms.dbias_mode == Grad::overwrite) exec.fill_zero(forms.dbias);
    return;
  }
  cuda::expert_glu_backward_fp8(exec, forms, grads.dweights, dact, gate_up, weights, rows, scratch);
}

}  // namespace inlay::ops
