#pragma once

#include <cstring>

#include "ops/rows.h"

// The fp32 master of a bf16 weight in its two halves, a vector at a time; the rule stands at AdamWState (ops/adamw.h).
namespace inlay::ops::cpu {

using backend::cpu::i16v;
using backend::cpu::i32v;
using backend::cpu::u16v;
using backend::cpu::u32v;

// A master in its two halves: see AdamWState.
struct Halves {
  u16v value;
  i16v low;
};

inline f32v join(Halves halves) {
  const u32v high = __builtin_convertvector(halves.value, u32v) << 16;
  return (f32v)(high + (u32v) __builtin_convertvector(halves.low, i32v));
}

inline Halves split(f32v master) {
  const auto word = (u32v)master;
  const u32v sign = word & 0x80000000u, magnitude = word & 0x7fffffffu;
  // Beyond this a finite number would round to infinity.
  const u32v too_large = (u32v)(magnitude > 0x7f7f7fffu) & (u32v)(magnitude < 0x7f800000u);
  const u32v kept = (((sign | 0x7f7f7fffu) & too_large) | (word & ~too_large));
  const u32v is_nan = (u32v)(magnitude > 0x7f800000u);
  const u32v rounded = (kept + 0x8000u) >> 16;
  const u32v value = (((word >> 16) | 0x40u) & is_nan) | (rounded & ~is_nan);
  const u32v low = (kept - (rounded << 16)) & ~is_nan;
  return {__builtin_convertvector(value, u16v), (i16v) __builtin_convertvector(low, u16v)};
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
f32v load_master(const float* value, const std::int16_t*, Extent extent) {
  return load(value, extent);
}
template <class Extent>
f32v load_master(const bf16* value, const std::int16_t* low, Extent extent) {
  return join({load_bits<u16v>(value, extent), load_bits<i16v>(low, extent)});
}
template <class Extent>
void store_master(float* value, std::int16_t*, f32v master, Extent extent) {
  store(value, master, extent);
}
template <class Extent>
void store_master(bf16* value, std::int16_t* low, f32v master, Extent extent) {
  const Halves halves = split(master);
  store_bits(value, halves.value, extent);
  store_bits(low, halves.low, extent);
}

// Shares [0, size) in units of a vector.
template <class Body>
void parallel_vectors(std::int64_t size, const Body& body) {
  parallel_for((size + lanes - 1) / lanes, 1024, [&](std::int64_t begin, std::int64_t end) {
    each_vector(begin * lanes, std::min(end * lanes, size), body);
  });
}

}  // namespace inlay::ops::cpu
