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
    View act = arena.scratch("mlp activation", x.dtype(), {end - begin, width});
    {
      const ScratchScope norm_scope(arena);
      View norm =
          saved.norm.absent() ? arena.scratch("mlp norm", x.dtype(), rows.shape()) : saved.norm.slice_rows(begin, end);
      ops::residual_rms_norm_forward(exec, norm, rows, x.slice_rows(begin, end), rows, parameters_.norm.value,
                                     config_.norm_eps);
      project(exec, gate_up, norm, begin);
    }
    ops::swiglu_forward(exec, act, gate_up);
    down_->forward(exec, out_rows, Grad::overwrite, act, {.first_row = begin});
    if (config_.mlp_bias) ops::add_bias(exec, out_rows, parameters_.down_bias.value);
    ops::add(exec, out_rows, rows);
  });
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
    {
      const ScratchScope act_scope(arena);
      View dact = arena.scratch("mlp activation gradient", dtype, {end - begin, width});
      down_->backward_input(exec, dact, Grad::overwrite, drows, {.first_row = begin});
      // gate_up becomes its own gradient; dact becomes the activation, for down's weight gradient.
      ops::swiglu_backward(exec, gate_up, dact, dact, gate_up);
      down_->accumulate(exec, drows, dact, {.first_row = begin});
    }
    if (config_.mlp_bias) {
      ops::bias_backward(exec, parameters_.down_bias.grad, parameters_.down_bias.next_grad_mode(), drows);
      ops::bias_backward(exec, parameters_.gate_up_bias.grad, parameters_.gate_up_bias.next_grad_mode(), gate_up);
    }
    const View dnorm = norm;  // will have served: its memory takes the gradient
    gate_up_->backward(exec, dnorm, Grad::overwrite, gate_up, norm, {.first_row = begin});
    ops::rms_norm_backward(exec, norm_grads(drows, Grad::accumulate, parameters_.norm), dnorm, rows,
                           parameters_.norm.value, config_.norm_eps);
  });
}

}  // namespace inlay::model
