#include "model/mlp_block.h"

#include "model/norm_grads.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace inlay::model {

using backend::Grad;
using backend::ScratchScope;

MlpBlock::MlpBlock(Exec& exec, const ModelConfig& config, MlpParameters& parameters,
                   const weights::WeightFactory& make_weight)
    : config_(config),
      parameters_(parameters),
      gate_up_(make_weight(exec, parameters.gate_up)),
      down_(make_weight(exec, parameters.down)) {}

void MlpBlock::project(Exec& exec, View gate_up, ConstView norm, std::int64_t row) {
  gate_up_->forward(exec, gate_up, Grad::overwrite, norm, {.first_row = row});
  if (config_.mlp_bias) ops::add_bias(exec, gate_up, parameters_.gate_up_bias.value);
}

void MlpBlock::project_down(Exec& exec, View out, ConstView gate_up, std::int64_t row) {
  const Shape shape{gate_up.dim(0), config_.intermediate};
  if (const auto fp8 = down_->fp8()) {
    const ops::Fp8Forms act = ops::scratch_fp8(exec, "mlp activation", fp8->settings, ops::Fp8Role::input,
                                               ops::Fp8Use::rows, shape[0], shape[1]);
    ops::swiglu_forward_fp8(exec, act, gate_up);
    down_->forward(exec, out, Grad::overwrite, {}, {.first_row = row, .x = &act});
    return;
  }
  View act = exec.arena().scratch("mlp activation", gate_up.dtype(), shape);
  ops::swiglu_forward(exec, act, gate_up);
  down_->forward(exec, out, Grad::overwrite, act, {.first_row = row});
}

void MlpBlock::forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
                       Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t tokens = x.dim(0), width = config_.intermediate;
  if (policy.keeps(Activation::mlp_norm)) {
    saved.norm = arena.keep(MemoryClass::activations, "mlp norm", x.dtype(), x.shape());
  }
  if (policy.keeps(Activation::gate_up)) {
    saved.gate_up = arena.keep(MemoryClass::activations, "gate and up", x.dtype(), {tokens, 2 * width});
  }
  for_each_tile(tokens, tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const View rows = residual.slice_rows(begin, end);
    const View out_rows = out.slice_rows(begin, end);
    View gate_up = saved.gate_up.absent() ? arena.scratch("gate and up", x.dtype(), {end - begin, 2 * width})
                                          : saved.gate_up.slice_rows(begin, end);
    {
      const ScratchScope norm_scope(arena);
      View norm =
          saved.norm.absent() ? arena.scratch("mlp norm", x.dtype(), rows.shape()) : saved.norm.slice_rows(begin, end);
      ops::residual_rms_norm_forward(exec, norm, rows, x.slice_rows(begin, end), rows, parameters_.norm.value,
                                     config_.norm_eps);
      project(exec, gate_up, norm, begin);
    }
    project_down(exec, out_rows, gate_up, begin);
    if (config_.mlp_bias) ops::add_bias(exec, out_rows, parameters_.down_bias.value);
    ops::add(exec, out_rows, rows);
  });
}

void MlpBlock::backward_plainly(Exec& exec, View dnorm, ConstView dout, View gate_up, ConstView norm,
                                std::int64_t row) {
  {
    const ScratchScope scope(exec.arena());
    View dact = exec.arena().scratch("mlp activation gradient", dout.dtype(), {dout.dim(0), config_.intermediate});
    down_->backward_input(exec, dact, Grad::overwrite, dout, {.first_row = row});
    // gate_up becomes its own gradient; dact becomes the activation, for down's weight gradient.
    ops::swiglu_backward(exec, gate_up, dact, dact, gate_up);
    down_->accumulate(exec, dout, dact, {.first_row = row});
  }
  if (config_.mlp_bias) {
    ops::bias_backward(exec, parameters_.down_bias.grad, parameters_.down_bias.next_grad_mode(), dout);
    ops::bias_backward(exec, parameters_.gate_up_bias.grad, parameters_.gate_up_bias.next_grad_mode(), gate_up);
  }
  gate_up_->backward(exec, dnorm, Grad::overwrite, gate_up, norm, {.first_row = row});
}

// Whoever makes an operand writes it in fp8, in the forms that the products read; nothing in between is stored.
void MlpBlock::backward_in_fp8(Exec& exec, View dnorm, ConstView dout, ConstView gate_up, ConstView norm,
                               std::int64_t row) {
  using ops::Fp8Role;
  using ops::Fp8Use;
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const auto down = down_->fp8(), up = gate_up_->fp8();
  const std::int64_t tokens = dout.dim(0), width = config_.intermediate;
  const ops::Fp8Forms dgate_up =
      ops::scratch_fp8(exec, "gate and up gradient", up->settings, Fp8Role::gradient,
                       gate_up_->trainable() ? Fp8Use::both : Fp8Use::rows, tokens, 2 * width);
  {
    const ScratchScope down_scope(arena);
    const ops::Fp8Forms dy = ops::scratch_fp8(exec, "mlp output gradient", down->settings, Fp8Role::gradient,
                                              down_->trainable() ? Fp8Use::both : Fp8Use::rows, tokens, dout.dim(1));
    const ops::Fp8Forms act =
        ops::scratch_fp8(exec, "mlp activation", down->settings, Fp8Role::input, down->gradient_input, tokens, width);
    View dact = arena.scratch("mlp activation gradient", dout.dtype(), {tokens, width});
    ops::quantise_fp8(exec, dy, dout);
    down_->backward_input(exec, dact, Grad::overwrite, dout, {.first_row = row, .dy = &dy});
    ops::swiglu_backward_fp8(exec, dgate_up, act, dact, gate_up);
    down_->accumulate(exec, dout, {}, {.first_row = row, .x = &act, .dy = &dy});
  }
  gate_up_->backward(exec, dnorm, Grad::overwrite, {}, norm, {.first_row = row, .dy = &dgate_up});
}

void MlpBlock::backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t width = config_.intermediate;
  for_each_tile(residual.dim(0), tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const ConstView rows = residual.slice_rows(begin, end);
    const View drows = grad.slice_rows(begin, end);
    const DType dtype = rows.dtype();

    View norm =
        saved.norm.absent() ? arena.scratch("mlp norm", dtype, rows.shape()) : saved.norm.slice_rows(begin, end);
    View gate_up = saved.gate_up.absent() ? arena.scratch("gate and up", dtype, {end - begin, 2 * width})
                                          : saved.gate_up.slice_rows(begin, end);
    {
      const backend::CostScope again(exec, backend::StepPart::recompute);
      if (saved.norm.absent()) ops::rms_norm_forward(exec, norm, rows, parameters_.norm.value, config_.norm_eps);
      if (saved.gate_up.absent()) project(exec, gate_up, norm, begin);
    }
    const View dnorm = norm;  // will have served: its memory takes the gradient
    if (down_->fp8() && gate_up_->fp8() && !config_.mlp_bias) {
      backward_in_fp8(exec, dnorm, drows, gate_up, norm, begin);
    } else {
      backward_plainly(exec, dnorm, drows, gate_up, norm, begin);
    }
    ops::rms_norm_backward(exec, norm_grads(drows, Grad::accumulate, parameters_.norm), dnorm, rows,
                           parameters_.norm.value, config_.norm_eps);
  });
}

}  // namespace inlay::model
