#pragma once

#include <cstdint>

#include "ops/linear.h"

// The head and the loss in one op: logits exist only as one reused chunk, and become their own gradient in place.
// Arithmetic and options: REFERENCE in docs/fused_linear_ce.md.
namespace inlay::ops {

enum class Reduction : std::uint8_t { mean, sum, none };

struct LossOptions {
  float label_smoothing = 0;
  float softcap = 0;   // 0: none
  float z_loss = 0;
  Reduction reduction = Reduction::mean;
  // mean divides by this where it is > 0 (valid labels of the whole global batch), else by this call's own weight sum.
  double normalizer = 0;
  std::int64_t chunk_tokens = 0;  // 0: chosen by the op
};

// Rows of `hidden` [T, H] named by `rows` (int32 [N], ascending) carry a label; the others cost nothing.
struct LossInputs {
  ConstView hidden;         // [T, H]
  ConstView targets;        // int32 [T]
  ConstView rows;           // int32 [N]: positions with a label that counts
  ConstView bias;           // [V], may be absent
  ConstView class_weights;  // fp32 [V], may be absent
  ConstView token_weights;  // fp32 [T], may be absent
  ConstView upstream;       // fp32: [1] for mean and sum, [T] for none; absent means 1
};

// Each is written where it is given. Scalars are += so that micro-batches add up; clear them first.
struct LossOutputs {
  View loss;         // fp32 [1]; for none: fp32 [T], = (0 at ignored rows)
  View z_loss;       // fp32 [1]: the part of loss that is z-loss
  View correct;      // int32 [1]: rows whose largest logit is the target's
  View predicted;    // int32 [T], = (-1 at ignored rows)
  View dhidden;      // [T, H], =; may be hidden itself; absent: no gradient (head only, or evaluation)
  View dbias;        // fp32 [V], += or = by mode
  Grad dbias_mode = Grad::skip;
  bool head_gradient = false;  // call head.accumulate
};

void fused_linear_ce(Exec& exec, Linear& head, const LossInputs& inputs, const LossOutputs& outputs,
                     const LossOptions& options);

}  // namespace inlay::ops
