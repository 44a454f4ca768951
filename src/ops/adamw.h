#pragma once

#include <algorithm>
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

// adamw_step() of many tensors by few kernels, each of which costs the host its launch.
struct AdamWSlot {
  AdamWState state;
  ConstView grad;
  bool decays = true;  // else weight_decay is not for this one
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

// The most partial sums that a sum of squares is made of, and how many a GPU makes of so many numbers.
inline constexpr std::int64_t partial_sum_count = 1024;
constexpr std::int64_t partial_sums(std::int64_t numbers) {
  constexpr std::int64_t each = 16384;
  return std::clamp<std::int64_t>((numbers + each - 1) / each, 1, partial_sum_count);
}
// sums[slots[i]] = Σ x[i]², in an order that x[i] alone decides; sums is fp64 on the device; x fp32 or bf16,
// contiguous.
void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x);
// The same of one.
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x);
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

// What the devices answer. Shapes are checked by then, and there is something to do (no planning, and to step no empty
// tensors).
namespace cpu {
// scratch: fp64 [partial_sum_count].
void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x, View scratch);
void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWFactors& factors);
void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors);
void add_update(Exec& exec, View value, View low, ConstView update, float decay);
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);
}  // namespace cpu

namespace cuda {
void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors);
void add_update(Exec& exec, View value, View low, ConstView update, float decay);
void split_master(Exec& exec, View value, View low, ConstView master);
void join_master(Exec& exec, View master, ConstView value, ConstView low);
void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm);
// What one launch takes: at most so many, alike in dtypes and in whether vectors fit.
inline constexpr std::size_t most_steps = 64, most_sums = 128;
bool steps_alike(const AdamWSlot& x, const AdamWSlot& y);
void adamw_steps(Exec& exec, std::span<const AdamWSlot* const> slots, ConstView grad_scale,
                 const AdamWFactors& factors);
struct SquaredTensor {
  ConstView x;
  std::int64_t slot = 0;
};
bool sums_alike(const SquaredTensor& x, const SquaredTensor& y);
// scratch, fp64, has room for the partial sums of all.
void sums_of_squares(Exec& exec, View sums, std::span<const SquaredTensor* const> tensors, View scratch);
}  // namespace cuda

}  // namespace inlay::ops
