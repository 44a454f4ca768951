#include "ops/divergence.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/parallel.h"
#include "backend/cpu/vec.h"

namespace inlay::ops::cpu {

using namespace backend::cpu;

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// A row of logits in fp32 after its softcap, and the logarithm of the sum of its exponentials, at two temperatures.
struct LogRow {
  std::vector<float> z;
  float max = lowest, log_sum = 0;  // at temperature 1
  float lse = 0;                    // of z / temperature

  template <class T>
  void read(const T* from, std::int64_t columns, float softcap, float temperature) {
    z.resize(static_cast<std::size_t>(columns));
    f32v best = splat(lowest);
    for (std::int64_t v = 0; v < columns; v += lanes) {
      const std::int64_t n = std::min(lanes, columns - v);
      f32v value = n == lanes ? load(from + v) : load_some(from + v, n);
      if (softcap > 0) value = softcap * tanh(value * (1.0f / softcap));
      if (n == lanes) {
        store(z.data() + v, value);
      } else {
        store_some(z.data() + v, value, n);
      }
      best =
          maximum(n == lanes ? value : select(lane_numbers < static_cast<std::int32_t>(n), value, splat(lowest)), best);
    }
    max = largest(best);
    log_sum = std::log(sum_of_exponentials(1.0f));
    lse = temperature == 1.0f ? max + log_sum : max / temperature + std::log(sum_of_exponentials(1.0f / temperature));
  }

 private:
  float sum_of_exponentials(float factor) const {
    f32v total{};
    const auto columns = static_cast<std::int64_t>(z.size());
    for (std::int64_t v = 0; v < columns; v += lanes) {
      const std::int64_t n = std::min(lanes, columns - v);
      const f32v value = n == lanes ? load(z.data() + v) : load_some(z.data() + v, n);
      const f32v e = backend::cpu::exp((value - max) * factor);
      total += n == lanes ? e : select(lane_numbers < static_cast<std::int32_t>(n), e, f32v{});
    }
    return sum(total);
  }
};

f32v log_lanes(f32v x) {
  for (std::int64_t i = 0; i < lanes; ++i) x[i] = std::log(x[i]);
  return x;
}

// divergence_terms and divergence_slope, a vector at a time.
struct VectorTerms {
  DivergenceSpec spec;
  f32v log_p, log_q, p, q, log_m;

  VectorTerms(const DivergenceSpec& with, f32v log_own, f32v log_other)
      : spec(with), log_p(log_own), log_q(log_other), p(backend::cpu::exp(log_own)), q(backend::cpu::exp(log_other)) {
    if (spec.kind == DivergenceKind::jensen_shannon) log_m = log_lanes(spec.beta * q + (1.0f - spec.beta) * p);
  }

  // weight · (a - b), which is 0 where the weight is, whatever the logarithms are.
  static f32v part(f32v weight, f32v a, f32v b) { return select(weight > f32v{}, weight * (a - b), f32v{}); }
  f32v own() const {
    if (spec.kind == DivergenceKind::forward) return f32v{};
    return part(p, log_p, spec.kind == DivergenceKind::reverse ? log_q : log_m);
  }
  f32v divergence() const {
    if (spec.kind == DivergenceKind::forward) return part(q, log_q, log_p);
    if (spec.kind == DivergenceKind::reverse) return own();
    return spec.beta * part(q, log_q, log_m) + (1.0f - spec.beta) * own();
  }
  f32v slope(float own_sum) const {
    if (spec.kind == DivergenceKind::forward) return p - q;
    if (spec.kind == DivergenceKind::reverse) return own() - p * own_sum;
    return (1.0f - spec.beta) * (own() - p * own_sum);
  }
};

template <class T, class Other>
class Row {
 public:
  Row(const DivergenceChunk& chunk, const LossScales& scales)
      : chunk_(chunk), scales_(scales), columns_(chunk.own.logits.dim(1)), inverse_(1.0f / chunk.spec.temperature) {}

  void run(std::int64_t row) {
    const SoftmaxChunk& own = chunk_.own;
    logits_ = own.logits.as<T>() + row * own.logits.ld();
    const std::int64_t at = own.positions.absent() ? own.first + row : own.positions.as<std::int32_t>()[row];
    const std::int32_t y = own.targets.as<std::int32_t>()[at];
    ours_.read(logits_, columns_, own.softcap, chunk_.spec.temperature);
    theirs_.read(chunk_.others.as<Other>() + row * chunk_.others.ld(), columns_, chunk_.others_softcap,
                 chunk_.spec.temperature);
    // Where nothing is known of the other model's prediction there is nothing to diverge from.
    known_ = theirs_.max > lowest;
    const float target = ours_.z[static_cast<std::size_t>(y)];
    const Sums sums = sums_of(target);

    const RowStatistics& statistics = own.statistics;
    statistics.max.as<float>()[row] = ours_.max;
    statistics.log_sum.as<float>()[row] = ours_.log_sum;
    statistics.target.as<float>()[row] = target;
    if (!statistics.spread.absent()) statistics.spread.as<float>()[row] = static_cast<float>(sums.spread);
    if (!statistics.argmax.absent()) {
      const auto top = std::max_element(ours_.z.begin(), ours_.z.end());
      statistics.argmax.as<std::int32_t>()[row] = static_cast<std::int32_t>(top - ours_.z.begin());
    }
    chunk_.divergence.as<float>()[row] = static_cast<float>(sums.divergence);
    if (own.gradient) write_gradient(at, y, target, static_cast<float>(sums.own));
  }

 private:
  struct Sums {
    double divergence = 0, own = 0, spread = 0;
  };

  // body(column, lanes) on every vector of columns.
  template <class Body>
  void each_vector(const Body& body) const {
    for (std::int64_t v = 0; v < columns_; v += lanes) body(v, std::min(lanes, columns_ - v));
  }
  static f32v some(const float* from, std::int64_t n) { return n == lanes ? load(from) : load_some(from, n); }
  static double sum_of(f32v value, std::int64_t n) {
    return static_cast<double>(
        sum(n == lanes ? value : select(lane_numbers < static_cast<std::int32_t>(n), value, f32v{})));
  }
  VectorTerms terms(std::int64_t v, std::int64_t n) const {
    return {chunk_.spec, some(ours_.z.data() + v, n) * inverse_ - ours_.lse,
            some(theirs_.z.data() + v, n) * inverse_ - theirs_.lse};
  }

  Sums sums_of(float target) const {
    Sums sums;
    each_vector([&](std::int64_t v, std::int64_t n) {
      if (!chunk_.own.statistics.spread.absent()) sums.spread += sum_of(target - some(ours_.z.data() + v, n), n);
      if (!known_) return;
      const VectorTerms at = terms(v, n);
      sums.divergence += sum_of(at.divergence(), n);
      if (chunk_.spec.kind != DivergenceKind::forward) sums.own += sum_of(at.own(), n);
    });
    return sums;
  }

  // The derivative of the capped logits by the raw ones: 1 - tanh², without the cancellation.
  static f32v cap_slope(f32v raw, float cap) {
    const f32v e = backend::cpu::exp(maximum(raw, -raw) * (-2.0f / cap));
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
  }

  void write_gradient(std::int64_t at, std::int32_t y, float target, float own_sum) {
    const SoftmaxChunk& own = chunk_.own;
    const DivergenceSpec& spec = chunk_.spec;
    float row_scale = own.gain, other_scale = own.gain;
    if (!own.token_weights.absent()) row_scale *= own.token_weights.as<float>()[at];
    if (!chunk_.weights.absent()) other_scale *= chunk_.weights.as<float>()[at];
    const float lse = ours_.max + ours_.log_sum, down = target - lse;
    const RowFactors factors = row_factors(scales_, 1.0f, scales_.class_sum, own.label_smoothing,
                                           static_cast<float>(columns_), lse, row_scale);
    // weight · temperature² / temperature, and what row_factors takes of the divisor
    const float outer = known_ ? other_scale * scales_.ce_gradient * spec.weight * spec.temperature : 0.0f;
    // The label's own entry: p - 1 without the cancellation.
    const float entry = factors.own * std::expm1(down) + std::exp(down) * (factors.all - factors.own) - factors.each;
    each_vector([&](std::int64_t v, std::int64_t n) {
      f32v ce = backend::cpu::exp(some(ours_.z.data() + v, n) - lse) * factors.all - factors.each;
      if (y >= v && y < v + n) ce[y - v] = entry;
      f32v dz = spec.ce_weight * ce;
      if (known_) dz += outer * terms(v, n).slope(own_sum);
      if (own.softcap > 0) dz *= cap_slope(n == lanes ? load(logits_ + v) : load_some(logits_ + v, n), own.softcap);
      if (n == lanes) {
        store(logits_ + v, dz);
      } else {
        store_some(logits_ + v, dz, n);
      }
    });
  }

  const DivergenceChunk& chunk_;
  const LossScales& scales_;
  std::int64_t columns_;
  float inverse_;
  T* logits_ = nullptr;
  bool known_ = false;
  LogRow ours_, theirs_;
};

template <class T, class Other>
void rows_of(const DivergenceChunk& chunk, const LossScales& scales) {
  parallel_for(chunk.own.logits.dim(0), 1 + 4096 / chunk.own.logits.dim(1), [&](std::int64_t begin, std::int64_t end) {
    Row<T, Other> row(chunk, scales);
    for (std::int64_t i = begin; i < end; ++i) row.run(i);
  });
}

}  // namespace

void divergence_gradient(Exec&, const DivergenceChunk& chunk) {
  LossScales scales;
  std::memcpy(&scales, chunk.own.scales.data(), sizeof scales);
  const bool wide = chunk.others.dtype() == DType::f32;
  switch (chunk.own.logits.dtype()) {
    case DType::f32: return rows_of<float, float>(chunk, scales);
    case DType::bf16: return wide ? rows_of<bf16, float>(chunk, scales) : rows_of<bf16, bf16>(chunk, scales);
    case DType::f16: return wide ? rows_of<f16, float>(chunk, scales) : rows_of<f16, f16>(chunk, scales);
    default: INLAY_ASSERT(false, "divergence_gradient of {}", name_of(chunk.own.logits.dtype()));
  }
}

}  // namespace inlay::ops::cpu
