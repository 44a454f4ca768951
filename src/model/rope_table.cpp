#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace inlay::model {

namespace {

constexpr double two_pi = 2.0 * std::numbers::pi;

// Long wavelengths are slowed down by `factor`, short ones stay, those between are blended.
double llama3_frequency(const RopeConfig& rope, double frequency) {
  const auto original = static_cast<double>(rope.original_positions);
  const double wavelength = two_pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN: a linear ramp over the pair index between the dimensions that turn beta_fast and beta_slow times within the
// original context.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeConfig& rope) {
    low_ = dimension_of(rope, rope.beta_fast);
    high_ = dimension_of(rope, rope.beta_slow);
    if (rope.truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(rope.rotary_dim - 1));
    if (low_ == high_) high_ += 0.001;  // as the published code does, to keep the ramp finite
  }

  // 1 where the plain frequency stays, 0 where it is divided by the factor.
  double extrapolation(std::int64_t pair) const {
    return 1.0 - std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  static double dimension_of(const RopeConfig& rope, double turns) {
    const auto original = static_cast<double>(rope.original_positions);
    return static_cast<double>(rope.rotary_dim) * std::log(original / (turns * two_pi)) / (2.0 * std::log(rope.theta));
  }

  double low_, high_;
};

double table_scale(const RopeConfig& rope) {
  if (rope.kind != RopeKind::yarn && rope.kind != RopeKind::longrope) return 1.0;
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  return rope.factor <= 1.0 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, bool long_document) {
  INLAY_ASSERT(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0, "rotary dimension {}", rope.rotary_dim);
  std::vector<float> frequencies;
  const YarnRamp ramp(rope);
  for (std::int64_t pair = 0; pair < rope.rotary_dim / 2; ++pair) {
    const double exponent = static_cast<double>(2 * pair) / static_cast<double>(rope.rotary_dim);
    double frequency = 1.0 / std::pow(rope.theta, exponent);
    if (rope.kind == RopeKind::linear) frequency /= rope.factor;
    if (rope.kind == RopeKind::llama3) frequency = llama3_frequency(rope, frequency);
    if (rope.kind == RopeKind::yarn) {
      const double keep = ramp.extrapolation(pair);
      frequency = frequency / rope.factor * (1.0 - keep) + frequency * keep;
    }
    if (rope.kind == RopeKind::longrope) {
      const std::vector<double>& factors = long_document ? rope.long_factors : rope.short_factors;
      frequency /= factors[static_cast<std::size_t>(pair)];
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

std::int64_t long_row(const RopeConfig& rope) { return rope.kind == RopeKind::longrope ? rope.original_positions : 0; }

std::int64_t rope_rows(const RopeConfig& rope, std::int64_t positions) {
  return positions > long_row(rope) ? long_row(rope) + positions : positions;
}

std::vector<float> rope_table(const RopeConfig& rope, std::int64_t positions) {
  const double scale = table_scale(rope);
  std::vector<float> table;
  const auto add_rows = [&](std::int64_t count, const std::vector<float>& frequencies) {
    table.reserve(table.size() + static_cast<std::size_t>(count) * frequencies.size() * 2);
    for (std::int64_t position = 0; position < count; ++position) {
      for (const float frequency : frequencies) {
        // The angle is rounded to fp32 as the models' own training code rounds it.
        const float angle = static_cast<float>(position) * frequency;
        table.push_back(static_cast<float>(std::cos(static_cast<double>(angle)) * scale));
        table.push_back(static_cast<float>(std::sin(static_cast<double>(angle)) * scale));
      }
    }
  };
  const std::int64_t first_long = long_row(rope);
  if (first_long > 0) add_rows(std::min(positions, first_long), rope_frequencies(rope));
  if (positions > first_long) add_rows(positions, rope_frequencies(rope, first_long > 0));
  return table;
}

}  // namespace inlay::model
