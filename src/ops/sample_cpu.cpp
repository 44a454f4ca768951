#include "ops/sample.h"

#include <cmath>
#include <limits>

#include "backend/cpu/vec.h"
#include "ops/gumbel.h"
#include "ops/philox_lanes.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::i32v;
using backend::cpu::u32v;

struct VectorMath {
  using Float = f32v;
  using Word = u32v;

  static Word bits(Float x) { return (u32v)x; }
  static i32v signed_bits(Word x) { return (i32v)x; }
  static Float from_bits(Word x) { return (f32v)x; }
  static Float number(Word x) { return __builtin_convertvector(x, f32v); }
  static Float number(i32v x) { return __builtin_convertvector(x, f32v); }
  static Float splat(float x) { return backend::cpu::splat(x); }
  static Float select(i32v mask, Float yes, Float no) { return backend::cpu::select(mask, yes, no); }
  static Float fused(Float a, Float b, Float c) { return backend::cpu::fused(a, b, c); }
};

// The largest score that each lane has met, and where first.
struct Best {
  f32v score = splat(-std::numeric_limits<float>::infinity());
  i32v at = {};

  void meet(f32v scores, std::int64_t begin) {
    const i32v places = backend::cpu::lane_numbers + static_cast<int>(begin);
    const i32v better = scores > score;  // never for a NaN
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
f32v logits_at(const float* row, std::int64_t at, std::int64_t vocab) {
  if (at + lanes <= vocab) return backend::cpu::load(row + at);
  f32v values = splat(-std::numeric_limits<float>::infinity());
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
  const f32v factor = splat(inverse_temperature);
  for (std::int64_t begin = 0; begin < vocab; begin += gumbel_stretch) {
    for (std::int64_t block = 0; block < gumbel_blocks; block += lanes) {
      const auto words = philox_words(seed, static_cast<std::uint64_t>(gumbel_block(begin + block)), stream);
      for (std::int64_t j = 0; j < 4; ++j) {
        const std::int64_t at = begin + j * gumbel_blocks + block;
        if (at >= vocab) break;
        const f32v noise = gumbel<VectorMath>(words[static_cast<std::size_t>(j)]);
        best.meet(backend::cpu::fused(logits_at(row, at, vocab), factor, noise), at);
      }
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
        const std::int64_t position = spec.positions ? spec.positions.as<std::int32_t>()[row] : spec.position;
        id = drawn(values, vocab, 1.0f / spec.temperature, spec.seed,
                   gumbel_stream(spec.first_sequence + row, position));
      }
    }
  });
}

}  // namespace inlay::ops::cpu
