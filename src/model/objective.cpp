#include "model/objective.h"

#include "ops/preference.h"

namespace inlay::model {

using backend::ScratchScope;

Objective::Objective(Exec& exec, const LossSettings& settings) : settings_(settings) {
  Arena& arena = exec.arena();
  loss_ = arena.keep(MemoryClass::batch, "loss", DType::f32, {1});
  correct_ = arena.keep(MemoryClass::batch, "correct predictions", DType::i32, {1});
  if (settings_.z_loss > 0) z_loss_ = arena.keep(MemoryClass::batch, "z-loss", DType::f32, {1});
}

void Objective::begin_step(Exec& exec) {
  exec.fill_zero(loss_);
  exec.fill_zero(correct_);
  if (!z_loss_.absent()) exec.fill_zero(z_loss_);
}

LossSums Objective::read(Exec& exec) {
  float loss = 0, z_loss = 0;
  std::int32_t correct = 0;
  exec.download(&loss, loss_);
  exec.download(&correct, correct_);
  if (!z_loss_.absent()) exec.download(&z_loss, z_loss_);
  return {.loss = loss, .z_loss = z_loss, .correct = correct, .parts = {}};
}

void Objective::evaluate_plainly(Exec& exec, const HeadPass& pass) {
  const DeviceBatch& batch = pass.batch;
  ops::fused_linear_ce(
      exec, pass.head,
      {.hidden = pass.hidden, .targets = batch.targets, .rows = batch.valid_rows, .token_weights = batch.weights},
      {.loss = loss_, .correct = correct_},
      {.softcap = pass.softcap, .normalizer = pass.divisor.units, .chunk_tokens = settings_.chunk});
}

void Objective::row_losses(Exec& exec, View losses, const HeadPass& pass) {
  ops::fused_linear_ce(
      exec, pass.head, {.hidden = pass.hidden, .targets = pass.batch.targets, .rows = pass.batch.valid_rows},
      {.loss = losses}, {.softcap = pass.softcap, .reduction = ops::Reduction::none, .chunk_tokens = settings_.chunk});
}

ops::LossOptions NextToken::loss_options(const HeadPass& pass) const {
  return {.label_smoothing = static_cast<float>(settings_.label_smoothing),
          .softcap = pass.softcap,
          .z_loss = static_cast<float>(settings_.z_loss),
          .reduction = ops::Reduction::mean,
          .normalizer = pass.divisor.units,
          .chunk_tokens = settings_.chunk,
          .rule = settings_.rule};
}

bool NextToken::wants_whole_batches() const {
  return settings_.rule.rule == ops::TokenRule::talr && settings_.rule_temperature == 0;
}

void NextToken::set_temperature(Exec& exec, ops::LossOptions& options, const HeadPass& pass) {
  if (settings_.rule.rule != ops::TokenRule::talr) return;
  Arena& arena = exec.arena();
  const View temperature = arena.scratch("rule: temperature", DType::f32, {1});
  if (settings_.rule_temperature > 0) {
    const auto value = static_cast<float>(settings_.rule_temperature);
    exec.upload(temperature, &value);
  } else {
    const ScratchScope scope(arena);
    const View losses = arena.scratch("row losses", DType::f32, {pass.batch.token_count});
    row_losses(exec, losses, pass);
    ops::mean_loss(exec, temperature, losses, pass.batch.valid_rows);
  }
  options.rule.temperature = temperature;
}

void NextToken::train(Exec& exec, const HeadPass& pass) {
  const ScratchScope scope(exec.arena());
  const DeviceBatch& batch = pass.batch;
  ops::LossOptions options = loss_options(pass);
  set_temperature(exec, options, pass);
  ops::fused_linear_ce(
      exec, pass.head,
      {.hidden = pass.hidden, .targets = batch.targets, .rows = batch.valid_rows, .token_weights = batch.weights},
      {.loss = loss_,
       .z_loss = z_loss_,
       .correct = correct_,
       .dhidden = pass.hidden,
       .head_gradient = pass.head.trainable()},
      options);
}

}  // namespace inlay::model
