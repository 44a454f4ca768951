#pragma once

#include "ops/check.h"

// AdamW without a schedule (Defazio et al., "The Road Less Scheduled", 2024). Three points: z, where plain steps lead;
// x, the average of all z, which is the model; and y = β1 x + (1 - β1) z, where gradients are computed. Between steps
// the weight is x, so that whoever evaluates or saves it finds the model; for a step it becomes y, and the step makes
// of it the next x.
namespace inlay::ops {

// A tensor's state: the weight with its low half (ops/adamw.h), z and the second moment in fp32.
struct ScheduleFreeState {
  View value, low, z, v;
};

struct ScheduleFreeSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double share = 1;       // of the new z in the average
  std::int64_t step = 1;  // of this update, for the bias correction
};

// x becomes y. At the first step z is where x is.
void schedule_free_begin(Exec& exec, const ScheduleFreeState& state, double beta1, bool first);
// y becomes the next x. grad_scale as in adamw_step(); grad is fp32.
void schedule_free_step(Exec& exec, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeSettings& settings);

// The settings as the kernels use them, computed once in double:
//   v = v · beta2 + g² · v_rate;  d = g / (sqrt(v) / v_root + eps) + decay · y
//   x = y + (z - y) · back;  z -= lr · d;  x += (z - x) · share
struct ScheduleFreeFactors {
  explicit ScheduleFreeFactors(const ScheduleFreeSettings& settings);
  float beta2, v_rate, v_root, eps;
  float decay;
  float back;  // 1 - 1 / beta1
  float lr, share;
};

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// ahead: 1 - beta1.
namespace cpu {
void schedule_free_begin(Exec& exec, const ScheduleFreeState& state, float ahead, bool first);
void schedule_free_step(Exec& exec, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeFactors& factors);
}  // namespace cpu
namespace cuda {
void schedule_free_begin(Exec& exec, const ScheduleFreeState& state, float ahead, bool first);
void schedule_free_step(Exec& exec, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeFactors& factors);
}  // namespace cuda

}  // namespace inlay::ops
