#pragma once

#include "ops/fused_linear_ce.h"
#include "ops/softmax_gradient.h"

// The small passes around the softmax gradient: sums over rows, in a fixed order, on the device.
namespace inlay::ops {

// One call of the loss as its passes see it.
struct LossCall {
  const LossInputs& inputs;
  const LossOutputs& outputs;
  const LossOptions& options;
  std::int64_t tokens = 0;       // T
  std::int64_t count = 0;        // N: rows that carry a label
  std::int64_t columns = 0;      // V
  View scales;                   // LossScales
  RowStatistics statistics;      // [N]
  View divergence = {};          // fp32 [N], where there is another model
  ConstView given_weights = {};  // fp32 [T]: of the divergence
};

// The two divisors, and what follows from them. A divisor of zero (no row, or weights that sum to zero) leaves its
// part of the loss out instead of making it NaN.
constexpr LossScales make_scales(double weight_sum, double count_sum, float z_loss, float upstream, float gain,
                                 float class_sum) {
  const double ce = weight_sum != 0 ? 1.0 / weight_sum : 0.0;
  const double z = count_sum != 0 ? static_cast<double>(z_loss) / count_sum : 0.0;
  const double outer = weight_sum != 0 ? ce : 1.0;  // goes into alpha
  return {.alpha = static_cast<float>(outer * static_cast<double>(upstream) / static_cast<double>(gain)),
          .ce_loss = static_cast<float>(ce),
          .z_loss = static_cast<float>(z),
          .ce_gradient = weight_sum != 0 ? 1.0f : 0.0f,
          .z_gradient = static_cast<float>(z / outer),
          .class_sum = class_sum};
}

// A row's loss, and the parts of it that are z-loss and divergence.
struct RowLoss {
  float whole, z_part, divergence_part;
};
constexpr RowLoss joined_loss(const LossScales& scales, const DivergenceSpec& spec, float weight, float other_weight,
                              float ce, float lse, float divergence) {
  const float z_part = spec.ce_weight * (weight * scales.z_loss * lse * lse);
  const float other = other_weight * scales.ce_loss * (spec.weight * spec.temperature * spec.temperature * divergence);
  return {spec.ce_weight * (weight * scales.ce_loss * ce) + z_part + other, z_part, other};
}

// What of the sums is known before any row is read.
struct Divisors {
  double weight_sum = 1, count_sum = 1;
  bool sum_weights = false, sum_counts = false;  // to be summed on the device instead
};
inline Divisors divisors_of(const LossCall& call) {
  const LossOptions& options = call.options;
  Divisors divisors;
  if (options.reduction != Reduction::mean) return divisors;
  const auto rows = static_cast<double>(call.count);
  const bool token_weights = !call.inputs.token_weights.absent();
  divisors.weight_sum = options.normalizer > 0 ? options.normalizer : rows;
  divisors.sum_weights = !(options.normalizer > 0) && (token_weights || !call.inputs.class_weights.absent());
  const double given = options.z_normalizer > 0 ? options.z_normalizer : options.normalizer;
  divisors.count_sum = given > 0 ? given : rows;
  divisors.sum_counts = !(given > 0) && token_weights;
  return divisors;
}

namespace cpu {
// scales =
void loss_scales(Exec& exec, const LossCall& call, float gain);
// loss, z_loss, correct +=, or per position =; predicted =
void finish_loss(Exec& exec, const LossCall& call);
// to[i] = from[positions[i]]
void gather_piece(Exec& exec, View to, ConstView from, ConstView positions);
// to[positions[i]] = from[i - begin] for i in [begin, end). Positions that no row names are cleared: those between the
// row before `begin` and the last row of this piece, and behind the very last row. What lies further back is untouched.
void scatter_piece(Exec& exec, View to, ConstView from, ConstView positions, std::int64_t begin, std::int64_t end);
// sums (fp32 [V]) = or += alpha · column sums of dz
void column_sums(Exec& exec, View sums, Grad mode, ConstView dz, const float* alpha);
// logits (fp32 [n, V]) = minus infinity, but for the log-probabilities that were kept of each row (OtherModel)
void spread_kept(Exec& exec, View logits, const OtherModel& other, ConstView positions, std::int64_t first);
}  // namespace cpu

namespace cuda {
void loss_scales(Exec& exec, const LossCall& call, float gain);
void finish_loss(Exec& exec, const LossCall& call);
void gather_piece(Exec& exec, View to, ConstView from, ConstView positions);
void scatter_piece(Exec& exec, View to, ConstView from, ConstView positions, std::int64_t begin, std::int64_t end);
void column_sums(Exec& exec, View sums, Grad mode, ConstView dz, const float* alpha);
void spread_kept(Exec& exec, View logits, const OtherModel& other, ConstView positions, std::int64_t first);
}  // namespace cuda

}  // namespace inlay::ops
