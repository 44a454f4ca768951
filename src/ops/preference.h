#pragma once

#include <cmath>
#include <cstdint>

#include "core/sequence_role.h"
#include "ops/check.h"

#ifndef INLAY_BOTH
#ifdef __CUDACC__
#define INLAY_BOTH __host__ __device__ inline
#else
#define INLAY_BOTH inline
#endif
#endif

// Losses over whole sequences of a batch: which of two answers is preferred, or whether an answer is desirable. They
// come from the tokens' own losses, and go back to them as factors (docs/objectives.md).
namespace inlay::ops {

enum class PreferenceKind : std::uint8_t { sigmoid, hinge, ipo, simpo, orpo, kto };

struct PreferenceSpec {
  PreferenceKind kind = PreferenceKind::sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;             // sigmoid, simpo
  double gamma = 0;                       // simpo: the margin, in units of the loss's argument
  double likelihood = 0;                  // the mean loss of the chosen answers' labels is added with this factor
  double desirable = 1, undesirable = 1;  // kto: factors

  constexpr bool averages() const {
    return kind == PreferenceKind::ipo || kind == PreferenceKind::simpo || kind == PreferenceKind::orpo;
  }
  constexpr bool needs_reference() const { return kind != PreferenceKind::simpo && kind != PreferenceKind::orpo; }
};

struct PreferenceInputs {
  ConstView losses = {};      // fp32 [T]: of every label, 0 where there is none
  ConstView targets = {};     // int32 [T]: a label counts from 0 on
  ConstView weights = {};     // fp32 [T]: of a token in its sequence's sum; absent: 1
  ConstView cu_seqlens = {};  // int32 [S + 1]
  ConstView roles = {};       // int32 [S]: SequenceRole
  ConstView reference = {};   // fp32 [S]: log-probabilities of the sequences by the reference model, or absent
  double documents = 1;       // of the whole step: what the loss is divided by
  double labels = 1;          // of its chosen sequences: what the likelihood is divided by
};

// Sums over the documents of a step, from which its metrics are made.
enum class PreferenceSum : std::uint8_t {
  loss,        // all of it, already divided
  likelihood,  // that part of it, without its factor
  chosen_reward,
  rejected_reward,
  chosen_log_prob,
  rejected_log_prob,
  chosen,  // how many
  rejected,
  accurate,  // pairs whose chosen answer has the larger reward
  odds,      // orpo: log odds, and the logarithm of their sigmoid
  odds_ratio,
  divergence,  // kto: of the micro-batches, and how many these are
  batches,
  count
};
inline constexpr std::int64_t preference_sums = static_cast<std::int64_t>(PreferenceSum::count);

// factors, fp32 [T], = the derivative of the loss by every label's own loss; sums, fp32 [preference_sums], +=.
void preference(Exec& exec, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec);

// mean, fp32 [1], = of the losses, fp32 [T], at the given rows (int32 [N]); 1 where there is none.
void mean_loss(Exec& exec, View mean, ConstView losses, ConstView rows);

// ---- what both devices compute, in fp64: sequences are few ----

// ln σ(x), and σ(x).
INLAY_BOTH double log_logistic(double x) { return (x < 0 ? x : 0.0) - log1p(exp(x < 0 ? x : -x)); }
INLAY_BOTH double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }

// What is known of a sequence: the log-probability of its answer, by the model and by the reference.
struct SequenceSum {
  double log_prob, reference, tokens, all_losses;  // all_losses: of labels, whatever they weigh
};

// Of a pair, or of one sequence: its loss, and the derivatives by the sequences' log-probabilities.
struct PreferenceResult {
  double loss = 0, by_chosen = 0, by_rejected = 0, chosen_reward = 0, rejected_reward = 0, odds = 0;
};

INLAY_BOTH PreferenceResult pair_loss(const PreferenceSpec& spec, const SequenceSum& chosen,
                                      const SequenceSum& rejected) {
  const bool means = spec.averages();
  const double chosen_part = means ? 1.0 / (chosen.tokens > 1 ? chosen.tokens : 1.0) : 1.0;
  const double rejected_part = means ? 1.0 / (rejected.tokens > 1 ? rejected.tokens : 1.0) : 1.0;
  const double c = chosen.log_prob * chosen_part, r = rejected.log_prob * rejected_part;
  PreferenceResult result;
  double slope = 0;  // by c, and with the other sign by r
  if (spec.kind == PreferenceKind::orpo) {
    const double c_rest = -expm1(c), r_rest = -expm1(r);  // 1 - p
    result.odds = (c - r) - (log(c_rest) - log(r_rest));
    result.loss = -spec.beta * log_logistic(result.odds);
    slope = -spec.beta * logistic(-result.odds);
    result.by_chosen = slope / c_rest * chosen_part;
    result.by_rejected = -slope / r_rest * rejected_part;
    result.chosen_reward = spec.beta * c;
    result.rejected_reward = spec.beta * r;
    return result;
  }
  const bool referred = spec.kind != PreferenceKind::simpo;
  const double c_ratio = c - (referred ? chosen.reference * chosen_part : 0.0);
  const double r_ratio = r - (referred ? rejected.reference * rejected_part : 0.0);
  const double margin = c_ratio - r_ratio;
  if (spec.kind == PreferenceKind::hinge) {
    const double rest = 1 - spec.beta * margin;
    result.loss = rest > 0 ? rest : 0.0;
    slope = rest > 0 ? -spec.beta : 0.0;
  } else if (spec.kind == PreferenceKind::ipo) {
    const double error = margin - 1 / (2 * spec.beta);
    result.loss = error * error;
    slope = 2 * error;
  } else {
    const double x = spec.beta * margin - (spec.kind == PreferenceKind::simpo ? spec.gamma : 0.0);
    const double smooth = spec.label_smoothing;
    result.loss = -(1 - smooth) * log_logistic(x) - smooth * log_logistic(-x);
    slope = spec.beta * (smooth * logistic(x) - (1 - smooth) * logistic(-x));
  }
  result.by_chosen = slope * chosen_part;
  result.by_rejected = -slope * rejected_part;
  // As TRL has them: of IPO the sums', not the means'.
  const bool sums = spec.kind == PreferenceKind::ipo;
  result.chosen_reward = spec.beta * (sums ? chosen.log_prob - chosen.reference : c_ratio);
  result.rejected_reward = spec.beta * (sums ? rejected.log_prob - rejected.reference : r_ratio);
  return result;
}

// kto: of one answer, divergence being the estimate that the batch has made.
INLAY_BOTH PreferenceResult single_loss(const PreferenceSpec& spec, const SequenceSum& answer, bool desirable,
                                        double divergence) {
  const double ratio = answer.log_prob - answer.reference;
  const double x = spec.beta * (desirable ? ratio - divergence : divergence - ratio);
  const double weight = desirable ? spec.desirable : spec.undesirable, value = logistic(x);
  PreferenceResult result;
  result.loss = weight * (1 - value);
  result.by_chosen = -weight * spec.beta * value * (1 - value) * (desirable ? 1.0 : -1.0);
  result.chosen_reward = spec.beta * ratio;
  return result;
}

namespace cpu {
void preference(Exec& exec, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec,
                View sequences);
void mean_loss(Exec& exec, View mean, ConstView losses, ConstView rows);
}  // namespace cpu
namespace cuda {
void preference(Exec& exec, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec,
                View sequences);
void mean_loss(Exec& exec, View mean, ConstView losses, ConstView rows);
}  // namespace cuda

}  // namespace inlay::ops
