#include "ops/muon.h"

#include <algorithm>
#include <cmath>

#include "ops/master_cpu.h"

namespace inlay::ops::cpu {

void muon_momentum(Exec&, View grad, View m, ConstView grad_scale, float momentum) {
  const float scale = grad_scale ? *grad_scale.as<float>() : 1.0f;
  float* gradient = grad.as<float>();
  with_activation(m.dtype(), [&](auto type) {
    auto* mean = m.as<decltype(type)>();
    parallel_vectors(grad.size(), [&](std::int64_t i, auto part) {
      const f32v g = load(gradient + i, part) * scale;
      const f32v old = load(mean + i, part);
      const f32v now = old + (g - old) * (1.0f - momentum);
      store(mean + i, now, part);
      store(gradient + i, g + (now - g) * momentum, part);  // =
    });
  });
}

void normalise(Exec&, View to, ConstView from, ConstView square_sum) {
  const auto norm = static_cast<float>(std::sqrt(*square_sum.as<double>()));
  const float inverse = 1.0f / std::max(norm, 1e-7f);
  bf16* out = to.as<bf16>();
  const float* in = from.as<float>();
  parallel_vectors(from.size(), [&](std::int64_t i, auto part) { store(out + i, load(in + i, part) * inverse, part); });
}

}  // namespace inlay::ops::cpu
