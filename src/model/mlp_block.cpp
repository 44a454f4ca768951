#include "model/mlp_block.h"

#include "model/norm_grads.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace inlay::model {

using backend::Grad;
using backend::ScratchScope;

MlpBlock::MlpBlock(Exec& exec, const ModelConfig& config, MlpParameters& parameters,
                   const weights::WeightFactory& make_weight)
    : config_(config),
      parameters_(parameters),
      gate_up_(make_weight(exec, parameters.gate_up)),
      down_(make_weight(exec, parameters.down)),
      answer_(config, parameters.output_norm) {}

ops::Gate MlpBlock::gate() const {
  if (config_.gate == MlpGate::silu) return ops::Gate::silu;
  return config_.gate == MlpGate::gelu ? ops::Gate::gelu : ops::Gate::gelu_tanh;
}

void MlpBlock::project(Exec& exec, View gate_up, ConstView norm, const ops::Call& call) {
  gate_up_->forward(exec, gate_up, Grad::overwrite, norm, call);
  if (config_.mlp_bias) ops::add_bias(exec, gate_up, parameters_.gate_up_bias.value);
}

// From gate and up on, with the activation in scratch.
void MlpBlock::multiply_down(Exec& exec, View answer, ConstView gate_up, std::int64_t row) {
  const ScratchScope scope(exec.arena());
  const Shape shape{gate_up.dim(0), config_.intermediate};
  if (const auto fp8 = down_->fp8()) {
    const ops::Fp8Forms act = ops::scratch_fp8(exec, "mlp activation", fp8->settings, ops::Fp8Role::input,
                                               ops::Fp8Use::rows, shape[0], shape[1]);
    ops::swiglu_forward_fp8(exec, act, gate_up, gate());
    down_->forward(exec, answer, Grad::overwrite, {}, {.first_row = row, .x = &act});
  } else {
    View act = exec.arena().scratch("mlp activation", gate_up.dtype(), shape);
    ops::swiglu_forward(exec, act, gate_up, gate());
    down_->forward(exec, answer, Grad::overwrite, act, {.first_row = row});
  }
  if (config_.mlp_bias) ops::add_bias(exec, answer, parameters_.down_bias.value);
}

void MlpBlock::forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
                       Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t tokens = x.dim(0), width = config_.intermediate;
  if (config_.input_norms && policy.keeps(Activation::mlp_norm)) {
    const InputNeed need = input_need(*gate_up_, policy[Activation::gate_up] == Storage::recompute);
    if (need == InputNeed::numbers) {
      saved.norm = arena.keep(MemoryClass::activations, "mlp norm", x.dtype(), x.shape());
    } else if (need == InputNeed::codes) {
      saved.norm_codes = KeptCodes(exec, "mlp norm", *gate_up_, tokens, tile);
    }
  }
  if (policy.keeps(Activation::gate_up)) {
    saved.gate_up = arena.keep(MemoryClass::activations, "gate and up", x.dtype(), {tokens, 2 * width});
  }
  if (answer_.is_needed() && policy.keeps(Activation::mlp_answer)) {
    saved.answer = arena.keep(MemoryClass::activations, "mlp answer", x.dtype(), x.shape());
  }
  for_each_tile(tokens, tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const View rows = residual.slice_rows(begin, end);
    const View out_rows = out.slice_rows(begin, end);
    View gate_up = saved.gate_up.absent() ? arena.scratch("gate and up", x.dtype(), {end - begin, 2 * width})
                                          : saved.gate_up.slice_rows(begin, end);
    if (config_.input_norms) {
      const ScratchScope norm_scope(arena);
      View norm =
          saved.norm.absent() ? arena.scratch("mlp norm", x.dtype(), rows.shape()) : saved.norm.slice_rows(begin, end);
      ops::residual_rms_norm_forward(exec, norm, rows, x.slice_rows(begin, end), rows, parameters_.norm.value,
                                     norm_spec());
      if (saved.norm_codes.absent()) {
        project(exec, gate_up, norm, {.first_row = begin});
      } else {
        const ops::Fp8Forms codes = saved.norm_codes.encode(exec, norm, begin);
        project(exec, gate_up, {}, {.first_row = begin, .x = &codes});
      }
    } else {
      ops::add(exec, rows, x.slice_rows(begin, end));
      project(exec, gate_up, rows, {.first_row = begin});
    }
    const View answer = saved.answer.absent() ? out_rows : saved.answer.slice_rows(begin, end);
    multiply_down(exec, answer, gate_up, begin);
    answer_.forward(exec, out_rows, answer);
    ops::add(exec, out_rows, rows);
  });
}

void MlpBlock::backward_plainly(Exec& exec, const InputGrad& to, ConstView danswer, View gate_up, ConstView input,
                                const ops::Call& call) {
  {
    const ScratchScope scope(exec.arena());
    View dact =
        exec.arena().scratch("mlp activation gradient", gate_up.dtype(), {gate_up.dim(0), config_.intermediate});
    down_->backward_input(exec, dact, Grad::overwrite, danswer, {.first_row = call.first_row});
    // gate_up becomes its own gradient; dact becomes the activation, for down's weight gradient.
    ops::swiglu_backward(exec, gate_up, dact, dact, gate_up, gate());
    down_->accumulate(exec, danswer, dact, {.first_row = call.first_row});
  }
  if (config_.mlp_bias) {
    ops::bias_backward(exec, parameters_.down_bias.grad, parameters_.down_bias.next_grad_mode(), danswer);
    ops::bias_backward(exec, parameters_.gate_up_bias.grad, parameters_.gate_up_bias.next_grad_mode(), gate_up);
  }
  gate_up_->backward(exec, to.din, to.mode, gate_up, input, call);
}

// Whoever makes an operand writes it in fp8, in the forms that the products read; nothing in between is stored.
void MlpBlock::backward_in_fp8(Exec& exec, const InputGrad& to, ConstView danswer, ConstView gate_up, ConstView input,
                               const ops::Call& call) {
  using ops::Fp8Role;
  using ops::Fp8Use;
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const auto down = down_->fp8(), up = gate_up_->fp8();
  const std::int64_t tokens = danswer.dim(0), width = config_.intermediate;
  const auto use_of = [](const weights::Weight& weight) { return weight.trainable() ? Fp8Use::both : Fp8Use::rows; };
  const ops::Fp8Forms dgate_up = ops::scratch_fp8(exec, "gate and up gradient", up->settings, Fp8Role::gradient,
                                                  use_of(*gate_up_), tokens, 2 * width);
  {
    const ScratchScope down_scope(arena);
    const ops::Fp8Forms dy = ops::scratch_fp8(exec, "mlp output gradient", down->settings, Fp8Role::gradient,
                                              use_of(*down_), tokens, danswer.dim(1));
    const ops::Fp8Forms act =
        ops::scratch_fp8(exec, "mlp activation", down->settings, Fp8Role::input, down->gradient_input, tokens, width);
    View dact = arena.scratch("mlp activation gradient", gate_up.dtype(), {tokens, width});
    ops::quantise_fp8(exec, dy, danswer);
    down_->backward_input(exec, dact, Grad::overwrite, danswer, {.first_row = call.first_row, .dy = &dy});
    ops::swiglu_backward_fp8(exec, dgate_up, act, dact, gate_up, gate());
    down_->accumulate(exec, danswer, {}, {.first_row = call.first_row, .x = &act, .dy = &dy});
  }
  gate_up_->backward(exec, to.din, to.mode, {}, input, {.first_row = call.first_row, .x = call.x, .dy = &dgate_up});
}

void MlpBlock::backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t width = config_.intermediate;
  for_each_tile(residual.dim(0), tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const ConstView rows = residual.slice_rows(begin, end);
    const View drows = grad.slice_rows(begin, end);
    const DType dtype = rows.dtype();

    const auto kept_or_scratch = [&](View kept, std::string_view name, std::int64_t columns) {
      return kept.absent() ? arena.scratch(name, dtype, {end - begin, columns}) : kept.slice_rows(begin, end);
    };
    View norm = config_.input_norms ? kept_or_scratch(saved.norm, "mlp norm", config_.hidden) : View();
    View gate_up = kept_or_scratch(saved.gate_up, "gate and up", 2 * width);
    View answer = answer_.is_needed() ? kept_or_scratch(saved.answer, "mlp answer", config_.hidden) : View();
    const ops::Fp8Forms* codes = saved.norm_codes.of_tile(begin);
    const bool reads_norm = codes == nullptr && input_need(*gate_up_, saved.gate_up.absent()) != InputNeed::nothing;
    {
      const backend::CostScope again(exec, backend::StepPart::recompute);
      if (config_.input_norms && saved.norm.absent() && reads_norm) {
        ops::rms_norm_forward(exec, norm, rows, parameters_.norm.value, norm_spec());
      }
      if (saved.gate_up.absent()) project(exec, gate_up, config_.input_norms ? norm : rows, {.first_row = begin});
      if (answer_.is_needed() && saved.answer.absent()) multiply_down(exec, answer, gate_up, begin);
    }
    const View din = config_.input_norms ? norm : drows;  // norm will have served: its memory takes the gradient
    {
      const ScratchScope products_scope(arena);
      const ConstView danswer = answer_.backward(exec, drows, answer);
      const ConstView input = codes != nullptr ? ConstView() : config_.input_norms ? norm : rows;
      const InputGrad to{din, config_.input_norms ? Grad::overwrite : Grad::accumulate};
      const ops::Call call{.first_row = begin, .x = codes};
      if (down_->fp8() && gate_up_->fp8() && !config_.mlp_bias) {
        backward_in_fp8(exec, to, danswer, gate_up, input, call);
      } else {
        backward_plainly(exec, to, danswer, gate_up, input, call);
      }
    }
    if (!config_.input_norms) return;
    ops::rms_norm_backward(exec, norm_grads(drows, Grad::accumulate, parameters_.norm), din, rows,
                           parameters_.norm.value, norm_spec());
  });
}

}  // namespace inlay::model
