#pragma once

#include <cstdint>

#include "core/dtype.h"

// The functions of backend/cpu/vec.h over arrays of numbers, as they are compiled for one instruction set. Arrays hold
// whole vectors; a vector is at most 16 numbers long.
namespace inlay::testing {

struct VecProbe {
  std::int64_t lanes;
  void (*exp)(float* y, const float* x, std::int64_t n);
  void (*tanh)(float* y, const float* x, std::int64_t n);
  void (*sigmoid)(float* y, const float* x, std::int64_t n);
  void (*square_root)(float* y, const float* x, std::int64_t n);
  void (*fused)(float* y, const float* a, const float* b, const float* c, std::int64_t n);
  void (*narrow)(bf16* y, const float* x, std::int64_t n);
  void (*widen)(float* y, const bf16* x, std::int64_t n);
  void (*to_half)(f16* y, const float* x, std::int64_t n);
  void (*from_half)(float* y, const f16* x, std::int64_t n);
  // Of one vector.
  float (*sum)(const float* x);
  float (*largest)(const float* x);
  void (*least_and_most)(float* least, float* most, const float* a, const float* b);
  // The first n numbers of a vector: loaded, the rest of it zero; stored, the rest untouched.
  void (*load_some)(float* y, const float* x, std::int64_t n);
  void (*load_some_bf16)(float* y, const bf16* x, std::int64_t n);
  void (*store_some)(float* y, const float* x, std::int64_t n);
  void (*store_some_bf16)(bf16* y, const float* x, std::int64_t n);
};

}  // namespace inlay::testing
