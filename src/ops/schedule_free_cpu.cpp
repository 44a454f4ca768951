#include "ops/master_cpu.h"
#include "ops/schedule_free.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::square_root;

// body(value, low, index, extent) over all vectors, in the value's dtype.
template <class Body>
void each_part(const ScheduleFreeState& state, const Body& body) {
  std::int16_t* low = state.low ? state.low.as<std::int16_t>() : nullptr;
  with_activation(state.value.dtype(), [&](auto type) {
    auto* value = state.value.as<decltype(type)>();
    parallel_vectors(state.value.size(), [&](std::int64_t i, auto part) { body(value + i, low + i, i, part); });
  });
}

}  // namespace

void schedule_free_begin(Exec&, const ScheduleFreeState& state, float ahead, bool first) {
  float* z = state.z.as<float>();
  each_part(state, [&](auto* value, std::int16_t* low, std::int64_t i, auto part) {
    const f32v x = load_master(value, low, part);
    if (first) return store(z + i, x, part);
    store_master(value, low, x + (load(z + i, part) - x) * ahead, part);
  });
}

void schedule_free_step(Exec&, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeFactors& f) {
  const float scale = grad_scale ? *grad_scale.as<float>() : 1.0f;
  float *z = state.z.as<float>(), *v = state.v.as<float>();
  const float* gradient = grad.as<float>();
  each_part(state, [&](auto* value, std::int16_t* low, std::int64_t i, auto part) {
    const f32v y = load_master(value, low, part), old = load(z + i, part), g = load(gradient + i, part) * scale;
    const f32v square = load(v + i, part) * f.beta2 + g * g * f.v_rate;
    const f32v direction = g / (square_root(square) / f.v_root + f.eps) + y * f.decay;
    const f32v x = y + (old - y) * f.back, next = old - direction * f.lr;
    store(v + i, square, part);
    store(z + i, next, part);
    store_master(value, low, x + (next - x) * f.share, part);
  });
}

}  // namespace inlay::ops::cpu
