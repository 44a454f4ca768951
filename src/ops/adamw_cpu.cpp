#include "ops/adamw.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::i32x16;
using backend::cpu::u16x16;
using backend::cpu::u32x16;
using f32x8 = float __attribute__((vector_size(32)));
using f64x8 = double __attribute__((vector_size(64)));
using i16x16 = std::int16_t __attribute__((vector_size(32)));

f32x16 square_root(f32x16 x) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#else
  for (int i = 0; i < lanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// A master in its two halves: see AdamWState.
struct Halves {
  u16x16 value;
  i16x16 low;
};

f32x16 join(Halves halves) {
  const u32x16 high = __builtin_convertvector(halves.value, u32x16) << 16;
  return (f32x16)(high + (u32x16) __builtin_convertvector(halves.low, i32x16));
}

Halves split(f32x16 master) {
  const auto word = (u32x16)master;
  const u32x16 sign = word & 0x80000000u, magnitude = word & 0x7fffffffu;
  // Beyond this a finite number would round to infinity.
  const u32x16 too_large = (u32x16)(magnitude > 0x7f7f7fffu) & (u32x16)(magnitude < 0x7f800000u);
  const u32x16 kept = (((sign | 0x7f7f7fffu) & too_large) | (word & ~too_large));
  const u32x16 is_nan = (u32x16)(magnitude > 0x7f800000u);
  const u32x16 rounded = (kept + 0x8000u) >> 16;
  const u32x16 value = (((word >> 16) | 0x40u) & is_nan) | (rounded & ~is_nan);
  const u32x16 low = (kept - (rounded << 16)) & ~is_nan;
  return {__builtin_convertvector(value, u16x16), (i16x16) __builtin_convertvector(low, u16x16)};
}

template <class Vector, class T>
Vector load_bits(const T* from, Whole) {
  Vector bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}
template <class Vector, class T>
Vector load_bits(const T* from, Part part) {
  Vector bits{};
  std::memcpy(&bits, from, static_cast<std::size_t>(part.n) * sizeof(T));
  return bits;
}
template <class Vector, class T>
void store_bits(T* to, Vector bits, Whole) {
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
}
template <class Vector, class T>
void store_bits(T* to, Vector bits, Part part) {
  std::memcpy(static_cast<void*>(to), &bits, static_cast<std::size_t>(part.n) * sizeof(T));
}

// The master of a weight that is its own, and of one in two halves.
template <class Extent>
f32x16 load_master(const float* value, const std::int16_t*, Extent extent) {
  return load(value, extent);
}
template <class Extent>
f32x16 load_master(const bf16* value, const std::int16_t* low, Extent extent) {
  return join({load_bits<u16x16>(value, extent), load_bits<i16x16>(low, extent)});
}
template <class Extent>
void store_master(float* value, std::int16_t*, f32x16 master, Extent extent) {
  store(value, master, extent);
}
template <class Extent>
void store_master(bf16* value, std::int16_t* low, f32x16 master, Extent extent) {
  const Halves halves = split(master);
  store_bits(value, halves.value, extent);
  store_bits(low, halves.low, extent);
}

// Shares [0, size) in units of 16 elements.
template <class Body>
void parallel_vectors(std::int64_t size, const Body& body) {
  parallel_for((size + lanes - 1) / lanes, 1024, [&](std::int64_t begin, std::int64_t end) {
    each_vector(begin * lanes, std::min(end * lanes, size), body);
  });
}

template <class Value, class Moment, class Gradient>
void step(const AdamWState& state, ConstView grad, float grad_scale, const AdamWFactors& f) {
  Value* value = state.value.as<Value>();
  std::int16_t* low = state.low ? state.low.as<std::int16_t>() : nullptr;
  Moment *m = state.m.as<Moment>(), *v = state.v.as<Moment>();
  const Gradient* gradient = grad.as<Gradient>();
  parallel_vectors(state.value.size(), [&](std::int64_t i, auto part) {
    const f32x16 g = load(gradient + i, part) * grad_scale;
    const f32x16 m_old = load(m + i, part);
    const f32x16 m_new = m_old + (g - m_old) * f.m_rate;
    const f32x16 v_new = load(v + i, part) * f.beta2 + g * g * f.v_rate;
    store(m + i, m_new, part);
    store(v + i, v_new, part);
    const f32x16 denominator = square_root(v_new) / f.v_root + f.eps;
    const f32x16 master = load_master(value + i, low + i, part) * f.decay;
    store_master(value + i, low + i, master - m_new * f.step_size / denominator, part);
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

template <class T>
double squares(const T* x, std::int64_t begin, std::int64_t end) {
  f64x8 first{}, second{};
  each_vector(begin, end, [&](std::int64_t i, auto part) {
    const f32x16 value = load(x + i, part);
    f32x8 halves[2];
    std::memcpy(halves, &value, sizeof halves);
    const f64x8 a = __builtin_convertvector(halves[0], f64x8), b = __builtin_convertvector(halves[1], f64x8);
    first += a * a;
    second += b * b;
  });
  const f64x8 both = first + second;
  double total = 0;
  for (int i = 0; i < 8; ++i) total += both[i];
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
