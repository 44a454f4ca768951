#include "objective/preference.h"

#include <algorithm>

namespace inlay::objective {

using backend::ScratchScope;
using model::BatchWeight;
using model::HeadPass;
using ops::PreferenceSum;

namespace {

class Preference final : public model::Objective {
 public:
  Preference(Exec& exec, const model::LossSettings& settings, const ops::PreferenceSpec& spec)
      : Objective(exec, settings), spec_(spec) {
    sums_ = exec.arena().keep(MemoryClass::batch, "sums of preferences", DType::f32, {ops::preference_sums});
  }

  void train(Exec& exec, const HeadPass& pass) override { run(exec, pass, true); }
  void evaluate(Exec& exec, const HeadPass& pass) override { run(exec, pass, false); }

  BatchWeight weight(const PackedBatch& batch) const override;
  bool wants_whole_batches() const override { return spec_.kind == ops::PreferenceKind::kto; }
  bool counts_documents() const override { return true; }
  Metrics metrics(const std::vector<double>& parts) const override;
  std::size_t part_count() const override { return static_cast<std::size_t>(ops::preference_sums); }
  double evaluation_loss(model::LossSums& sums, const BatchWeight& weight) const override {
    double& likelihood = sums.parts[static_cast<std::size_t>(PreferenceSum::likelihood)];
    const double preferences = sums.loss - spec_.likelihood * likelihood;
    likelihood /= std::max(weight.labels, 1.0);
    return preferences / weight.units + spec_.likelihood * likelihood;
  }

  void begin_step(Exec& exec) override {
    Objective::begin_step(exec);
    exec.fill_zero(sums_);
  }
  model::LossSums read(Exec& exec) override {
    model::LossSums result = Objective::read(exec);
    std::vector<float> sums(static_cast<std::size_t>(ops::preference_sums));
    exec.download(sums.data(), sums_);
    result.parts.assign(sums.begin(), sums.end());
    result.loss += result.parts[static_cast<std::size_t>(PreferenceSum::loss)];
    return result;
  }

 private:
  void run(Exec& exec, const HeadPass& pass, bool gradients);

  ops::PreferenceSpec spec_;
  View sums_;
};

void Preference::run(Exec& exec, const HeadPass& pass, bool gradients) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const model::DeviceBatch& batch = pass.batch;
  const View losses = arena.scratch("row losses", DType::f32, {batch.token_count});
  const View factors = arena.scratch("factors of losses", DType::f32, {batch.token_count});
  row_losses(exec, losses, pass);
  if (batch.roles.absent()) {  // a batch of nothing, while other processes have one of something
    exec.fill_zero(factors);
  } else {
    ops::preference(exec, factors, sums_,
                    {.losses = losses,
                     .targets = batch.targets,
                     .weights = batch.weights,
                     .cu_seqlens = batch.cu_seqlens,
                     .roles = batch.roles,
                     .reference = batch.reference,
                     .documents = pass.divisor.units,
                     .labels = pass.divisor.labels},
                    spec_);
  }
  if (!gradients) return;
  ops::fused_linear_ce(
      exec, pass.head,
      {.hidden = pass.hidden, .targets = batch.targets, .rows = batch.valid_rows, .token_weights = factors},
      {.dhidden = pass.hidden, .head_gradient = pass.head.trainable()},
      {.softcap = pass.softcap, .reduction = ops::Reduction::sum, .chunk_tokens = settings_.chunk});
}

BatchWeight Preference::weight(const PackedBatch& batch) const {
  BatchWeight weight;
  for (std::size_t s = 0; s < batch.roles.size(); ++s) {
    const auto role = static_cast<SequenceRole>(batch.roles[s]);
    weight.units +=
        role == SequenceRole::chosen || role == SequenceRole::desirable || role == SequenceRole::undesirable;
    if (role != SequenceRole::chosen) continue;
    const auto first = batch.targets.begin() + batch.cu_seqlens[s],
               last = batch.targets.begin() + batch.cu_seqlens[s + 1];
    weight.labels += static_cast<double>(std::count_if(first, last, is_label));
  }
  return weight;
}

// As TRL names them. Means over the answers of the step.
model::Objective::Metrics Preference::metrics(const std::vector<double>& parts) const {
  const auto part = [&](PreferenceSum sum) { return parts[static_cast<std::size_t>(sum)]; };
  const auto mean = [&](PreferenceSum sum, PreferenceSum count) {
    return part(count) > 0 ? part(sum) / part(count) : 0.0;
  };
  const double chosen = mean(PreferenceSum::chosen_reward, PreferenceSum::chosen);
  const double rejected = mean(PreferenceSum::rejected_reward, PreferenceSum::rejected);
  Metrics metrics = {{"rewards/chosen", chosen}, {"rewards/rejected", rejected}};
  if (spec_.kind != ops::PreferenceKind::kto) {
    metrics.emplace_back("rewards/accuracies", mean(PreferenceSum::accurate, PreferenceSum::chosen));
  }
  metrics.emplace_back("rewards/margins", chosen - rejected);
  metrics.emplace_back("logps/chosen", mean(PreferenceSum::chosen_log_prob, PreferenceSum::chosen));
  metrics.emplace_back("logps/rejected", mean(PreferenceSum::rejected_log_prob, PreferenceSum::rejected));
  if (spec_.likelihood > 0) metrics.emplace_back("nll_loss", part(PreferenceSum::likelihood));
  if (spec_.kind == ops::PreferenceKind::orpo) {
    metrics.emplace_back("log_odds_ratio", mean(PreferenceSum::odds_ratio, PreferenceSum::chosen));
    metrics.emplace_back("log_odds_chosen", mean(PreferenceSum::odds, PreferenceSum::chosen));
  }
  if (spec_.kind == ops::PreferenceKind::kto) {
    metrics.emplace_back("kl", mean(PreferenceSum::divergence, PreferenceSum::batches));
  }
  return metrics;
}

}  // namespace

std::unique_ptr<model::Objective> PreferenceKind::make(Exec& exec, const model::LossSettings& settings) const {
  return std::make_unique<Preference>(exec, settings, spec_);
}

}  // namespace inlay::objective
