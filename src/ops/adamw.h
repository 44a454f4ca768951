#pragma once

#include "ops/check.h"

namespace inlay::ops {

struct AdamWSettings {
  float lr = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  std::int64_t step = 1;  // of this update, for the bias correction
};

// One tensor's training state. A bf16 weight is completed to an exact fp32 master by 16 more bits: master's bits are
// (value.bits << 16) + low (signed), value being the master rounded to nearest. An fp32 weight is its own master, and
// low is absent. Moments are fp32 or bf16.
struct AdamWState {
  View value, low, m, v;
};
// Decoupled weight decay, as torch.optim.AdamW. grad_scale (fp32 [1] on the device, may be absent) multiplies the
// gradient: the clipping factor.
void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWSettings& settings);

// Splits fp32 values into bf16 and the low half, and joins them again, exactly.
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);

// sums[slot] = Σ x², in a fixed order; sums is fp64 [slots] on the device.
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x);
// norm = sqrt(Σ sums), scale = min(1, max_norm / (norm + 1e-6)) (1 where max_norm <= 0); both fp32 [1].
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);

}  // namespace inlay::ops
