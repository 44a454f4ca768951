#include "ops/adamw_8bit.h"

#include <algorithm>
#include <cmath>

#include "ops/quant_codes.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

struct Map {
  const float *values, *midpoints;
};

void open_codes(float* to, const std::uint8_t* codes, float scale, const Map& map, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = map.values[codes[i]] * scale;
}

float close_codes(std::uint8_t* codes, const float* from, const Map& map, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(from[i]));
  const float inverse = quant::nested_inverse(largest);
  for (std::int64_t i = 0; i < count; ++i) codes[i] = quant::dynamic_code(from[i] * inverse, map.midpoints);
  return largest;
}

}  // namespace

void adamw_update_8bit(Exec&, View grad, const Moments8& moments, ConstView grad_scale, const AdamWFactors& f) {
  static constexpr Map with_sign{quant::dynamic_values.data(), quant::dynamic_midpoints.data()};
  static constexpr Map without{quant::unsigned_dynamic_values.data(), quant::unsigned_dynamic_midpoints.data()};
  const float scale = grad_scale ? *grad_scale.as<float>() : 1.0f;
  const std::int64_t cols = grad.dim(1), across = moment_blocks(cols);
  float* gradient = grad.as<float>();
  auto *m_codes = moments.m.as<std::uint8_t>(), *v_codes = moments.v.as<std::uint8_t>();
  auto *m_scales = moments.m_scale.as<float>(), *v_scales = moments.v_scale.as<float>();
  parallel_for(grad.dim(0) * across, 16, [&](std::int64_t begin, std::int64_t end) {
    float m[moment_block], v[moment_block];
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t col = block % across * moment_block, at = block / across * cols + col;
      const std::int64_t count = std::min(moment_block, cols - col);
      float* g = gradient + at;
      open_codes(m, m_codes + at, m_scales[block], with_sign, count);
      open_codes(v, v_codes + at, v_scales[block], without, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const float x = g[i] * scale;
        m[i] += (x - m[i]) * f.m_rate;
        v[i] = v[i] * f.beta2 + x * x * f.v_rate;
        g[i] = -(m[i] * f.step_size / (std::sqrt(v[i]) / f.v_root + f.eps));  // =
      }
      m_scales[block] = close_codes(m_codes + at, m, with_sign, count);
      v_scales[block] = close_codes(v_codes + at, v, without, count);
    }
  });
}

}  // namespace inlay::ops::cpu
