#include "objective/divergence.h"

namespace inlay::objective {

using backend::ScratchScope;
using model::HeadPass;

namespace {

class Divergence final : public model::NextToken {
 public:
  Divergence(Exec& exec, const model::LossSettings& settings, const ops::DivergenceSpec& spec, std::string metric)
      : NextToken(exec, settings), spec_(spec), metric_(std::move(metric)) {
    divergence_ = exec.arena().keep(MemoryClass::batch, "divergence", DType::f32, {1});
  }

  void train(Exec& exec, const HeadPass& pass) override;

  void begin_step(Exec& exec) override {
    NextToken::begin_step(exec);
    exec.fill_zero(divergence_);
  }
  model::LossSums read(Exec& exec) override {
    model::LossSums result = NextToken::read(exec);
    float divergence = 0;
    exec.download(&divergence, divergence_);
    result.parts = {divergence, result.loss - divergence};
    return result;
  }
  std::size_t part_count() const override { return 2; }
  // Without its factor, so that runs with other factors compare; and what remains of the loss.
  Metrics metrics(const std::vector<double>& parts) const override {
    Metrics metrics = {{metric_, spec_.weight > 0 ? parts[0] / spec_.weight : 0.0}};
    if (spec_.ce_weight > 0) metrics.emplace_back("ce_loss", parts[1] / spec_.ce_weight);
    return metrics;
  }

 private:
  ops::DivergenceSpec spec_;
  std::string metric_;
  View divergence_;
};

void Divergence::train(Exec& exec, const HeadPass& pass) {
  const ScratchScope scope(exec.arena());
  const model::DeviceBatch& batch = pass.batch;
  ops::LossOptions options = loss_options(pass);
  set_temperature(exec, options, pass);
  options.divergence = spec_;
  ops::LossInputs inputs{.hidden = pass.hidden,
                         .targets = batch.targets,
                         .rows = batch.valid_rows,
                         .token_weights = batch.weights,
                         .other = pass.other};
  ops::fused_linear_ce(exec, pass.head, inputs,
                       {.loss = loss_,
                        .z_loss = z_loss_,
                        .divergence = divergence_,
                        .correct = correct_,
                        .dhidden = pass.hidden,
                        .head_gradient = pass.head.trainable()},
                       options);
}

}  // namespace

std::unique_ptr<model::Objective> DivergenceKind::make(Exec& exec, const model::LossSettings& settings) const {
  return std::make_unique<Divergence>(exec, settings, spec_, metric_);
}

}  // namespace inlay::objective
