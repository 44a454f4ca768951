#pragma once

#include "ops/adamw.h"

// AdamW with moments in eight bits (Dettmers et al., 2022): a quarter of their memory. Numbers are kept in blocks of
// 256 along a row, each as a code of the dynamic map (ops/quant_codes.h) times the block's largest magnitude.
namespace inlay::ops {

inline constexpr std::int64_t moment_block = 256;
inline std::int64_t moment_blocks(std::int64_t cols) { return (cols + moment_block - 1) / moment_block; }

// The moments of a matrix [R, C]. Zero where the scales are, whatever the codes.
struct Moments8 {
  View m, v;              // u8 [R, C]
  View m_scale, v_scale;  // fp32 [R, moment_blocks(C)]
};

// adamw_update() with such moments: the gradient (fp32 [R, C], contiguous) becomes the change, decay aside, made with
// the moments before they are rounded to be kept.
void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWSettings& settings);

// adamw_step() with such moments. The gradient is used up.
void adamw_step_8bit(Exec& exec, View value, View low, View grad, const Moments8& moments, ConstView grad_scale,
                     const AdamWSettings& settings);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWFactors& factors);
}
namespace cuda {
void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWFactors& factors);
// For rows of whole vectors.
inline constexpr std::int64_t moments_together = 8;
void adamw_step_8bit(Exec& exec, View value, View low, View grad, const Moments8& moments, ConstView grad_scale,
                     const AdamWFactors& factors);
}  // namespace cuda

}  // namespace inlay::ops
