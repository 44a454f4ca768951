#pragma once

#include <cstdint>

#include "ops/check.h"

// The middle of the fused linear cross entropy: a chunk of logits becomes its own gradient in place, each logit read
// once and written once, and every row leaves a few numbers behind from which the loss is made.
namespace inlay::ops {

// Factors that all rows share. They live in device memory (fp32 [6]), because sums over the batch decide them and no
// host may wait for those.
struct LossScales {
  float alpha;    // what the GEMMs multiply dZ by: 1 / N, the upstream gradient, and 1 / gain
  float ce_loss;  // loss = ce_loss · Σ cross entropy + z_loss · Σ lse²
  float z_loss;
  float ce_gradient;  // the same two factors as they enter dZ, with alpha taken out
  float z_gradient;
  float class_sum;  // Σ class weights; read only where label smoothing meets class weights
};
inline constexpr std::int64_t loss_scales_count = sizeof(LossScales) / sizeof(float);

// What each row leaves behind, [N] each, z being the logit after bias and softcap. These are the values that ranks
// with a part of the vocabulary each would exchange between reading the logits and writing dZ: two partial rows
// combine as M = max(max_a, max_b), log_sum = log(Σ exp(max_i + log_sum_i - M)); target and spread are sums over the
// ranks (target: 0 where the label lies elsewhere; spread against a target exchanged first).
struct RowStatistics {
  View max;      // fp32: max_v z_v
  View log_sum;  // fp32: log Σ_v exp(z_v - max), so that lse = max + log_sum loses nothing when logits are large
  View target;   // fp32: z_y
  View spread;   // fp32: Σ_v c_v (z_y - z_v); absent without label smoothing
  View argmax;   // int32: the first column of the largest logit (before softcap); absent where nobody asks
};

struct SoftmaxChunk {
  View logits;          // [n, V]: read, and dZ where `gradient`; see pad_columns for its stride
  ConstView positions;  // int32 [n]: where the rows stand in the batch; absent: first, first + 1, ...
  std::int64_t first = 0;
  ConstView targets;         // int32 [T]
  ConstView bias;            // [V] in the logits' dtype, or absent
  ConstView class_weights;   // fp32 [V], or absent
  ConstView token_weights;   // fp32 [T], or absent
  ConstView row_upstream;    // fp32 [T], or absent: a factor of each row's gradient
  ConstView scales;          // LossScales
  RowStatistics statistics;  // of these rows
  float label_smoothing = 0, softcap = 0;
  float gain = 1;  // dZ is stored times this power of two, which alpha takes back
  bool gradient = false;
};

// Rows of logits begin at multiples of this many columns: vectors are whole, and what lies between V and the stride
// belongs to the slab and may be overwritten.
inline constexpr std::int64_t logit_column_padding = 64;
constexpr std::int64_t pad_columns(std::int64_t columns) {
  return (columns + logit_column_padding - 1) / logit_column_padding * logit_column_padding;
}

// fp16 cannot hold p = 1 / V of a large vocabulary as a normal number; sixteen times that it can.
constexpr float gradient_gain(DType dtype) { return dtype == DType::f16 ? 16.0f : 1.0f; }

// A row of dZ before softcap and the target's correction is p_v · all - c_v · each; at the target it is
// (p_y - 1) · own + p_y · (all - own) - c_y · each, which keeps what p_y - 1 would lose.
struct RowFactors {
  float all, own, each;
};
constexpr RowFactors row_factors(const LossScales& scales, float class_weight, float class_sum, float smoothing,
                                 float columns, float lse, float row_scale) {
  const float own = scales.ce_gradient * class_weight * (1.0f - smoothing);
  const float each = scales.ce_gradient * smoothing / columns;
  const float all = own + each * class_sum + 2.0f * scales.z_gradient * lse;
  return {row_scale * all, row_scale * own, row_scale * each};
}

// The cross entropy of a row, nll being lse - z_y.
constexpr float row_loss(float class_weight, float class_sum, float smoothing, float columns, float nll, float spread) {
  return class_weight * (1.0f - smoothing) * nll + smoothing / columns * (class_sum * nll + spread);
}

namespace cpu {
void softmax_gradient(Exec& exec, const SoftmaxChunk& chunk);
}
namespace cuda {
void softmax_gradient(Exec& exec, const SoftmaxChunk& chunk);
}

}  // namespace inlay::ops
