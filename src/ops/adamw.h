#pragma once

#include <span>

#include "ops/check.h"

namespace inlay::ops {

struct AdamWSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;  // of this update, for the bias correction
};

// One tensor's training state. A bf16 weight is completed to an exact fp32 master by 16 more bits: master's bits are
// (value.bits << 16) + low (signed), value being the master rounded to nearest, halves away from zero, so that low
// always fits. A NaN keeps value a NaN with low = 0. Finite masters of magnitude above 0x7f7f7fff (3.396e38), whose
// value would round to infinity, are clamped to that. An fp32 weight is its own master, and low is absent. Moments are
// both fp32 or both bf16. All views are contiguous and of one shape.
struct AdamWState {
  View value, low, m, v;
};
// Decoupled weight decay, as torch.optim.AdamW. grad_scale (fp32 [1] on the device, may be absent) multiplies the
// gradient: the clipping factor. grad is fp32 or bf16.
void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale,
                const AdamWSettings& settings);

// adamw_step() of many tensors by few kernels: what adapters have are small and many.
struct AdamWSlot {
  AdamWState state;
  ConstView grad;
};
void adamw_steps(Exec& exec, std::span<const AdamWSlot> slots, ConstView grad_scale, const AdamWSettings& settings);

// The same as adamw_step() in two halves, for weights whose change is projected before it is made: the first turns the
// gradient (fp32, contiguous) into the change, decay aside; the second is value = value · decay + update on the fp32
// master.
void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWSettings& settings);
void add_update(Exec& exec, View value, View low, ConstView update, const AdamWSettings& settings);

// Splits fp32 values into bf16 and the low half, and joins them again, exactly (but for the two cases above).
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);

// The most partial sums that a sum of squares is made of.
inline constexpr std::int64_t partial_sum_count = 1024;
// sums[slot] = Σ x², in a fixed order; sums is fp64 [slots] on the device; x fp32 or bf16, contiguous.
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x);
// The same of many: sums[slots[i]] = Σ x[i]². x fp32 each.
void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x);
// norm = sqrt(Σ sums), scale = min(1, max_norm / (norm + 1e-6)) (1 where max_norm <= 0); both fp32 [1].
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);

// The settings as the kernels use them, computed once in double:
//   p *= decay;  m += (g - m) · m_rate;  v = v · beta2 + g² · v_rate;  p -= step_size · m / (sqrt(v) / v_root + eps)
struct AdamWFactors {
  explicit AdamWFactors(const AdamWSettings& settings);
  float decay;   // 1 - lr · weight_decay
  float m_rate;  // 1 - beta1
  float beta2;
  float v_rate;     // 1 - beta2
  float step_size;  // lr / (1 - beta1^step)
  float v_root;     // sqrt(1 - beta2^step)
  float eps;
};

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// scratch: fp64 [partial_sum_count].
namespace cpu {
void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWFactors& factors);
void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors);
void add_update(Exec& exec, View value, View low, ConstView update, float decay);
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x, View scratch);
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);
}  // namespace cpu

namespace cuda {
void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWFactors& factors);
void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors);
void add_update(Exec& exec, View value, View low, ConstView update, float decay);
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x, View scratch);
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);
// At most `most_together` tensors of one kind: dtypes, and whether vectors of eight fit (steps_alike()).
inline constexpr std::size_t most_together = 64;
bool steps_alike(const AdamWSlot& x, const AdamWSlot& y);
void adamw_steps(Exec& exec, std::span<const AdamWSlot* const> slots, ConstView grad_scale,
                 const AdamWFactors& factors);
void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x);
}  // namespace cuda

}  // namespace inlay::ops
