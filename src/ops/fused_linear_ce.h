#pragma once

#include <cstdint>

#include "ops/divergence.h"
#include "ops/linear.h"
#include "ops/token_rule.h"

// The head and the loss in one op: logits exist only as one reused chunk, and become their own gradient in place.
// The arithmetic and every option are described in docs/fused_linear_ce.md, and specified as short scalar code in
// ops/reference/cross_entropy.h.
namespace inlay::ops {

enum class Reduction : std::uint8_t { mean, sum, none };

struct LossOptions {
  float label_smoothing = 0;  // in [0, 1)
  float softcap = 0;          // 0: none
  float z_loss = 0;
  Reduction reduction = Reduction::mean;
  // mean divides by this where it is > 0 (valid labels of the whole global batch), else by this call's own weight sum:
  // Σ class weight of the label · token weight.
  double normalizer = 0;
  std::int64_t chunk_tokens = 0;  // rows of logits that exist at a time; 0: chosen by the op
  // The z-loss's own divisor where it is > 0; else `normalizer` where that is given, else this call's Σ token weight.
  double z_normalizer = 0;
  TokenRuleSpec rule;         // a further factor of every row, which the divisors do not know
  DivergenceSpec divergence;  // where LossInputs has another model
};

// What another model says about the same rows: its hidden states and head, of the same vocabulary; or logits that were
// kept, of which only the largest are known.
struct OtherModel {
  Linear* head = nullptr;    // absent: the logits that were kept
  ConstView hidden = {};     // [T, H'] in the dtype of hidden
  ConstView ids = {};        // int32 [T, K]: columns; ids from -1 down are none
  ConstView log_probs = {};  // fp32 [T, K]
  float softcap = 0;

  bool present() const { return head != nullptr || !ids.absent(); }
};

// Rows of `hidden` [T, H] named by `rows` (int32 [N], ascending) carry a label; the others cost nothing.
struct LossInputs {
  ConstView hidden = {};         // [T, H]: fp32, bf16 or fp16; the logits have this dtype
  ConstView targets = {};        // int32 [T]; in range at the rows that count (checked when the batch was made)
  ConstView rows = {};           // int32 [N]: positions with a label that counts; absent: all of them
  ConstView bias = {};           // [V] in hidden's dtype, may be absent
  ConstView class_weights = {};  // fp32 [V], may be absent
  ConstView token_weights = {};  // fp32 [T], may be absent
  ConstView upstream = {};       // fp32: [1] for mean and sum, [T] for none; absent means 1
  OtherModel other = {};         // not with bias, class_weights or Reduction::none
};

// Each is written where it is given. Scalars are += so that micro-batches add up; clear them first.
struct LossOutputs {
  View loss = {};        // fp32 [1]; for none: fp32 [T], = (0 at ignored rows)
  View z_loss = {};      // shaped like loss: the part of it that is z-loss
  View divergence = {};  // fp32 [1] +=: the part of loss that is divergence, as it counts
  View correct = {};     // int32 [1]: rows whose largest logit is the target's (the first one of equals counts)
  View predicted = {};   // int32 [T], = (-1 at ignored rows)
  View dhidden = {};     // [T, H], = (0 at ignored rows); may be hidden itself; absent: head only, or evaluation
  View dbias = {};       // fp32 [V], += or = by mode
  Grad dbias_mode = Grad::skip;
  bool head_gradient = false;  // call head.accumulate (a frozen head is left alone all the same)
};

// How many rows of logits exist at a time in a batch of so many tokens: as many as wanted, or, where that is 0, as the
// device is served best with.
std::int64_t loss_chunk_rows(Device device, DType dtype, std::int64_t columns, std::int64_t tokens,
                             std::int64_t wanted);

// Launches everything and waits for nothing. Where no gradient is asked for, logits are only read.
void fused_linear_ce(Exec& exec, Linear& head, const LossInputs& inputs, const LossOutputs& outputs,
                     const LossOptions& options);

}  // namespace inlay::ops
