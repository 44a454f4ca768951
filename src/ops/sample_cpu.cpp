#include "ops/sample.h"

#include <cmath>
#include <limits>

#include "backend/cpu/vec.h"
#include "ops/gumbel.h"
#include "ops/philox_lanes.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::i32x16;
using backend::cpu::u32x16;

struct VectorMath {
  using Float = f32x16;
  using Word = u32x16;

  static Word bits(Float x) { return (u32x16)x; }
  static i32x16 signed_bits(Word x) { return (i32x16)x; }
  static Float from_bits(Word x) { return (f32x16)x; }
  static Float number(Word x) { return __builtin_convertvector(x, f32x16); }
  static Float number(i32x16 x) { return __builtin_convertvector(x, f32x16); }
  static Float splat(float x) { return backend::cpu::splat(x); }
  static Float select(i32x16 mask, Float yes, Float no) { return backend::cpu::select(mask, yes, no); }
  static Float fused(Float a, Float b, Float c) { return backend::cpu::fused(a, b, c); }
};

// The largest score that each lane has met, and where first.
struct Best {
  f32x16 score = splat(-std::numeric_limits<float>::infinity());
  i32x16 at = {};

  void meet(f32x16 scores, std::int64_t begin) {
    const i32x16 places = i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + static_cast<int>(begin);
    const i32x16 better = scores > score;  // never for a NaN
    score = backend::cpu::select(better, scores, score);
    at = better ? places : at;
  }
  std::int32_t winner() const {
    int best = 0;
    for (int lane = 1; lane < lanes; ++lane) {
      if (score[lane] > score[best] || (score[lane] == score[best] && at[lane] < at[best])) best = lane;
    }
    return at[best];
  }
};

// A vector of logits; past the end of the row they are −∞.
f32x16 logits_at(const float* row, std::int64_t at, std::int64_t vocab) {
  if (at + lanes <= vocab) return backend::cpu::load(row + at);
  f32x16 values = splat(-std::numeric_limits<float>::infinity());
  for (std::int64_t i = at; i < vocab; ++i) values[i - at] = row[i];
  return values;
}

std::int32_t likeliest(const float* row, std::int64_t vocab) {
  Best best;
  for (std::int64_t at = 0; at < vocab; at += lanes) best.meet(logits_at(row, at, vocab), at);
  return best.winner();
}

std::int32_t drawn(const float* row, std::int64_t vocab, float inverse_temperature, std::uint64_t seed,
                   std::uint64_t stream) {
  Best best;
  const f32x16 factor = splat(inverse_temperature);
  for (std::int64_t begin = 0; begin < vocab; begin += gumbel_stretch) {
    const auto words = philox_words(seed, static_cast<std::uint64_t>(gumbel_block(begin)), stream);
    for (std::int64_t j = 0; j < 4; ++j) {
      const std::int64_t at = begin + j * lanes;
      if (at >= vocab) break;
      const f32x16 noise = gumbel<VectorMath>(words[static_cast<std::size_t>(j)]);
      best.meet(backend::cpu::fused(logits_at(row, at, vocab), factor, noise), at);
    }
  }
  return best.winner();
}

}  // namespace

void sample(Exec&, View ids, ConstView logits, const SampleSpec& spec) {
  const std::int64_t vocab = logits.dim(1);
  parallel_for(logits.dim(0), row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* values = logits.as<float>() + row * logits.ld();
      std::int32_t& id = ids.as<std::int32_t>()[row];
      if (spec.temperature == 0.0f) {
        id = likeliest(values, vocab);
      } else {
        id = drawn(values, vocab, 1.0f / spec.temperature, spec.seed,
                   gumbel_stream(spec.first_sequence + row, spec.position));
      }
    }
  });
}

}  // namespace inlay::ops::cpu
