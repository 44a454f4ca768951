#include "ops/preference.h"

#include <algorithm>
#include <array>

namespace inlay::ops::cpu {

namespace {

struct Sums {
  std::array<double, preference_sums> values{};
  void add(PreferenceSum what, double value) { values[static_cast<std::size_t>(what)] += value; }
};

}  // namespace

void preference(Exec&, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec,
                View sequences) {
  const std::int64_t count = inputs.roles.dim(0);
  const float* losses = inputs.losses.as<float>();
  const float* weights = inputs.weights.absent() ? nullptr : inputs.weights.as<float>();
  const float* reference = inputs.reference.absent() ? nullptr : inputs.reference.as<float>();
  const std::int32_t *targets = inputs.targets.as<std::int32_t>(), *starts = inputs.cu_seqlens.as<std::int32_t>();
  auto* table = reinterpret_cast<SequenceSum*>(sequences.data());
  const auto role = [&](std::int64_t s) { return static_cast<SequenceRole>(inputs.roles.as<std::int32_t>()[s]); };

  double divergence = 0, mismatched = 0;
  for (std::int64_t s = 0; s < count; ++s) {
    SequenceSum sum{0, reference == nullptr ? 0.0 : static_cast<double>(reference[s]), 0, 0};
    for (std::int32_t t = starts[s]; t < starts[s + 1]; ++t) {
      if (targets[t] < 0) continue;
      const double weight = weights == nullptr ? 1.0 : static_cast<double>(weights[t]);
      sum.log_prob -= weight * static_cast<double>(losses[t]);
      sum.tokens += weight;
      sum.all_losses += static_cast<double>(losses[t]);
    }
    table[s] = sum;
    if (role(s) != SequenceRole::mismatched) continue;
    divergence += sum.log_prob - sum.reference;
    mismatched += 1;
  }
  divergence = mismatched > 0 ? std::max(divergence / mismatched, 0.0) : 0.0;

  Sums all;
  const auto spread = [&](std::int64_t s, double by_log_prob, double likelihood) {
    for (std::int32_t t = starts[s]; t < starts[s + 1]; ++t) {
      const double weight = weights == nullptr ? 1.0 : static_cast<double>(weights[t]);
      factors.as<float>()[t] =
          targets[t] < 0 ? 0.0f : static_cast<float>(likelihood - weight * by_log_prob / inputs.documents);
    }
  };
  const auto meet = [&](bool chosen, double reward, const SequenceSum& sum) {
    const double log_prob =
        spec.averages() && spec.kind != PreferenceKind::ipo ? sum.log_prob / std::max(sum.tokens, 1.0) : sum.log_prob;
    all.add(chosen ? PreferenceSum::chosen_reward : PreferenceSum::rejected_reward, reward);
    all.add(chosen ? PreferenceSum::chosen_log_prob : PreferenceSum::rejected_log_prob, log_prob);
    all.add(chosen ? PreferenceSum::chosen : PreferenceSum::rejected, 1);
  };
  for (std::int64_t s = 0; s < count; ++s) {
    const SequenceRole mine = role(s);
    if (mine == SequenceRole::chosen) {
      const PreferenceResult result = pair_loss(spec, table[s], table[s + 1]);
      const double likelihood = spec.likelihood / inputs.labels;
      all.add(PreferenceSum::loss, result.loss / inputs.documents + likelihood * table[s].all_losses);
      all.add(PreferenceSum::likelihood, table[s].all_losses / inputs.labels);
      meet(true, result.chosen_reward, table[s]);
      meet(false, result.rejected_reward, table[s + 1]);
      all.add(PreferenceSum::accurate, result.chosen_reward > result.rejected_reward ? 1 : 0);
      all.add(PreferenceSum::odds, result.odds);
      all.add(PreferenceSum::odds_ratio, log_logistic(result.odds));
      spread(s, result.by_chosen, likelihood);
      spread(s + 1, result.by_rejected, 0);
    } else if (mine == SequenceRole::desirable || mine == SequenceRole::undesirable) {
      const bool desirable = mine == SequenceRole::desirable;
      const PreferenceResult result = single_loss(spec, table[s], desirable, divergence);
      all.add(PreferenceSum::loss, result.loss / inputs.documents);
      meet(desirable, result.chosen_reward, table[s]);
      spread(s, result.by_chosen, 0);
    } else if (mine != SequenceRole::rejected) {
      spread(s, 0, 0);
    }
  }
  if (mismatched > 0) {
    all.add(PreferenceSum::divergence, divergence);
    all.add(PreferenceSum::batches, 1);
  }
  for (std::size_t i = 0; i < all.values.size(); ++i) sums.as<float>()[i] += static_cast<float>(all.values[i]);
}

void mean_loss(Exec&, View mean, ConstView losses, ConstView rows) {
  double sum = 0;
  for (std::int64_t i = 0; i < rows.dim(0); ++i) {
    sum += static_cast<double>(losses.as<float>()[rows.as<std::int32_t>()[i]]);
  }
  *mean.as<float>() = rows.dim(0) > 0 ? static_cast<float>(sum / static_cast<double>(rows.dim(0))) : 1.0f;
}

}  // namespace inlay::ops::cpu
