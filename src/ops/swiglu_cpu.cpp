#include "ops/rows.h"
#include "ops/swiglu.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::select;
using backend::cpu::sigmoid;
using backend::cpu::splat;

// What the sigmoid is taken of, and its derivative.
template <Gate kind>
f32v exponent(f32v x) {
  return kind == Gate::silu ? x : x * (gelu_linear + gelu_cubic * x * x);
}
template <Gate kind>
f32v exponent_slope(f32v x) {
  return kind == Gate::silu ? splat(1.0f) : gelu_linear + 3.0f * gelu_cubic * x * x;
}

// Φ(x) = erfc(-x / √2) / 2, with erfc by a Chebyshev fit whose relative error is below 1.2e-7 everywhere (Press et al.,
// Numerical Recipes): far to the left, where little comes through, that little is right.
f32v normal_distribution(f32v x) {
  const f32v y = select(x < f32v{}, -x, x) * 0.70710678f;
  const f32v t = 1.0f / (1.0f + 0.5f * y);
  f32v p = splat(0.17087277f);
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  const f32v tail = 0.5f * t * backend::cpu::exp(p - y * y);
  return select(x < f32v{}, tail, 1.0f - tail);
}

// The share of a gate that comes through, and the derivative of what does.
template <Gate kind>
f32v share(f32v x) {
  if constexpr (kind == Gate::gelu) return normal_distribution(x);
  return sigmoid(exponent<kind>(x));
}
template <Gate kind>
f32v slope(f32v x, f32v s) {
  if constexpr (kind == Gate::gelu) return s + x * (0.39894228f * backend::cpu::exp(-0.5f * x * x));
  return s + x * s * (1.0f - s) * exponent_slope<kind>(x);
}

template <class T, Gate kind>
void forward(View act, ConstView gate_up) {
  const std::int64_t width = act.cols();
  const Rows<T> act_rows(act);
  const Rows<const T> in_rows(gate_up);
  parallel_for(act.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *gate = in_rows[row], *up = gate + width;
      T* out = act_rows[row];
      each_vector(0, width, [&](std::int64_t i, auto part) {
        const f32v g = load(gate + i, part);
        store(out + i, g * share<kind>(g) * load(up + i, part), part);
      });
    }
  });
}

// Every element is read before anything is written at its place: outputs may be the inputs.
template <class T, Gate kind, bool write_act>
void backward(View dgate_up, View act, ConstView dact, ConstView gate_up) {
  const std::int64_t width = dact.cols();
  const Rows<const T> in_rows(gate_up), dact_rows(dact);
  const Rows<T> out_rows(dgate_up), act_rows(write_act ? act : dgate_up);
  parallel_for(dact.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *gate = in_rows[row], *up = gate + width, *d = dact_rows[row];
      T *dgate = out_rows[row], *dup = dgate + width, *out = act_rows[row];
      each_vector(0, width, [&](std::int64_t i, auto part) {
        const f32v g = load(gate + i, part), u = load(up + i, part), upstream = load(d + i, part);
        const f32v s = share<kind>(g), opened = g * s;
        store(dgate + i, upstream * u * slope<kind>(g, s), part);
        store(dup + i, upstream * opened, part);
        if constexpr (write_act) store(out + i, opened * u, part);
      });
    }
  });
}

// Calls body with the gate as a constant.
template <class Body>
void with_gate(Gate gate, const Body& body) {
  if (gate == Gate::silu) return body(std::integral_constant<Gate, Gate::silu>{});
  if (gate == Gate::gelu) return body(std::integral_constant<Gate, Gate::gelu>{});
  body(std::integral_constant<Gate, Gate::gelu_tanh>{});
}

}  // namespace

void swiglu_forward(Exec&, View act, ConstView gate_up, Gate gate) {
  with_gate(gate, [&](auto kind) {
    with_activation(act.dtype(), [&](auto type) { forward<decltype(type), kind>(act, gate_up); });
  });
}

void swiglu_backward(Exec&, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate) {
  with_gate(gate, [&](auto kind) {
    with_activation(dact.dtype(), [&](auto type) {
      using T = decltype(type);
      act ? backward<T, kind, true>(dgate_up, act, dact, gate_up)
          : backward<T, kind, false>(dgate_up, act, dact, gate_up);
    });
  });
}

}  // namespace inlay::ops::cpu
