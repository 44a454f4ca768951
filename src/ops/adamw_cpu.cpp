#include "ops/adamw.h"

#include <cmath>
#include <cstring>

#include "ops/master_cpu.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::square_root;

// The moments take in the gradient; the result is what the weight changes by, decay aside.
template <class Moment, class Gradient, class Extent>
f32v update(Moment* m, Moment* v, const Gradient* gradient, float grad_scale, const AdamWFactors& f, Extent extent) {
  const f32v g = load(gradient, extent) * grad_scale;
  const f32v m_old = load(m, extent);
  const f32v m_new = m_old + (g - m_old) * f.m_rate;
  const f32v v_new = load(v, extent) * f.beta2 + g * g * f.v_rate;
  store(m, m_new, extent);
  store(v, v_new, extent);
  return m_new * f.step_size / (square_root(v_new) / f.v_root + f.eps);
}

template <class Value, class Moment, class Gradient>
void step(const AdamWState& state, ConstView grad, float grad_scale, const AdamWFactors& f) {
  Value* value = state.value.as<Value>();
  std::int16_t* low = state.low ? state.low.as<std::int16_t>() : nullptr;
  Moment *m = state.m.as<Moment>(), *v = state.v.as<Moment>();
  const Gradient* gradient = grad.as<Gradient>();
  parallel_vectors(state.value.size(), [&](std::int64_t i, auto part) {
    const f32v change = update(m + i, v + i, gradient + i, grad_scale, f, part);
    const f32v master = load_master(value + i, low + i, part) * f.decay;
    store_master(value + i, low + i, master - change, part);
  });
}

}  // namespace

void adamw_step(Exec&, const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWFactors& factors) {
  const float scale = grad_scale ? *grad_scale.as<float>() : 1.0f;
  with_activation(state.value.dtype(), [&](auto value) {
    with_activation(state.m.dtype(), [&](auto moment) {
      with_activation(grad.dtype(), [&](auto gradient) {
        step<decltype(value), decltype(moment), decltype(gradient)>(state, grad, scale, factors);
      });
    });
  });
}

void adamw_update(Exec&, View grad, View m, View v, ConstView grad_scale, const AdamWFactors& factors) {
  const float scale = grad_scale ? *grad_scale.as<float>() : 1.0f;
  float* gradient = grad.as<float>();
  with_activation(m.dtype(), [&](auto type) {
    using Moment = decltype(type);
    parallel_vectors(grad.size(), [&](std::int64_t i, auto part) {
      const f32v change = update(m.as<Moment>() + i, v.as<Moment>() + i, gradient + i, scale, factors, part);
      store(gradient + i, f32v{} - change, part);  // =
    });
  });
}

void add_update(Exec&, View value, View low, ConstView update, float decay) {
  const float* change = update.as<float>();
  std::int16_t* low_half = low ? low.as<std::int16_t>() : nullptr;
  with_activation(value.dtype(), [&](auto type) {
    auto* to = value.as<decltype(type)>();
    parallel_vectors(value.size(), [&](std::int64_t i, auto part) {
      const f32v master = load_master(to + i, low_half + i, part) * decay;
      store_master(to + i, low_half + i, master + load(change + i, part), part);
    });
  });
}

void split_master(Exec&, View value, View low, ConstView master) {
  bf16* to = value.as<bf16>();
  std::int16_t* to_low = low.as<std::int16_t>();
  const float* from = master.as<float>();
  parallel_vectors(master.size(),
                   [&](std::int64_t i, auto part) { store_master(to + i, to_low + i, load(from + i, part), part); });
}

void join_master(Exec&, View master, ConstView value, ConstView low) {
  float* to = master.as<float>();
  const bf16* from = value.as<bf16>();
  const std::int16_t* from_low = low.as<std::int16_t>();
  parallel_vectors(master.size(),
                   [&](std::int64_t i, auto part) { store(to + i, load_master(from + i, from_low + i, part), part); });
}

namespace {

// Half as many as of f32.
using f32_half = float __attribute__((vector_size(backend::cpu::vector_bytes / 2)));
using f64v = double __attribute__((vector_size(backend::cpu::vector_bytes)));

template <class T>
double squares(const T* x, std::int64_t begin, std::int64_t end) {
  f64v first{}, second{};
  each_vector(begin, end, [&](std::int64_t i, auto part) {
    const f32v value = load(x + i, part);
    f32_half halves[2];
    std::memcpy(halves, &value, sizeof halves);
    const f64v a = __builtin_convertvector(halves[0], f64v), b = __builtin_convertvector(halves[1], f64v);
    first += a * a;
    second += b * b;
  });
  const f64v both = first + second;
  double total = 0;
  for (int i = 0; i < lanes / 2; ++i) total += both[i];
  return total;
}

}  // namespace

// Pieces depend on the size alone, so the sum does not depend on the number of threads.
void sum_of_squares(Exec&, View sums, std::int64_t slot, ConstView x, View scratch) {
  constexpr std::int64_t smallest_piece = 16384;
  const std::int64_t size = x.size();
  const std::int64_t pieces = std::min(scratch.size(), (size + smallest_piece - 1) / smallest_piece);
  auto* partials = scratch.as<double>();
  with_activation(x.dtype(), [&](auto type) {
    const auto* data = x.as<decltype(type)>();
    parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        partials[piece] = squares(data, size * piece / pieces, size * (piece + 1) / pieces);
      }
    });
  });
  double total = 0;
  for (std::int64_t piece = 0; piece < pieces; ++piece) total += partials[piece];
  sums.as<double>()[slot] = total;  // =
}

void clip_scale(Exec&, View norm, View scale, ConstView sums, float max_norm) {
  double total = 0;
  for (std::int64_t slot = 0; slot < sums.size(); ++slot) total += sums.as<double>()[slot];
  const auto root = static_cast<float>(std::sqrt(total));
  const float factor = max_norm / (root + 1e-6f);
  *norm.as<float>() = root;
  // A NaN is no reason to go on as if nothing had been: it stays one.
  *scale.as<float>() = max_norm <= 0.0f || factor >= 1.0f ? 1.0f : factor;
}

}  // namespace inlay::ops::cpu
