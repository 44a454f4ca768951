#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/parallel.h"
#include "backend/cpu/vec.h"
#include "ops/softmax_gradient.h"

namespace inlay::ops::cpu {

using namespace backend::cpu;

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

const float* floats(const ConstView& view) { return view.absent() ? nullptr : view.as<float>(); }
const std::int32_t* ints(const ConstView& view) { return view.absent() ? nullptr : view.as<std::int32_t>(); }

// Calls body(column, lanes) on every vector of columns, and on what is left over.
template <class Body>
[[gnu::always_inline]] inline void each_vector(std::int64_t columns, const Body& body) {
  std::int64_t v = 0;
  for (; v + lanes <= columns; v += lanes) body(v, lanes);
  if (v < columns) body(v, columns - v);
}

template <class T>
[[gnu::always_inline]] inline f32v read(const T* from, std::int64_t n) {
  return n == lanes ? load(from) : load_some(from, n);
}

// Lanes from n on replaced.
[[gnu::always_inline]] inline f32v only(f32v value, std::int64_t n, float other) {
  if (n == lanes) return value;
  return select(lane_numbers < static_cast<std::int32_t>(n), value, splat(other));
}

// One row at a time: it stays in the second-level cache while the passes go over it. `plain` leaves out what few runs
// ask for (bias, class weights in the sum, smoothing, softcap), so that the common loop is short.
template <class T, bool plain>
class Row {
 public:
  Row(const SoftmaxChunk& chunk, const LossScales& scales)
      : chunk_(chunk),
        scales_(scales),
        columns_(chunk.logits.dim(1)),
        bias_(chunk.bias.absent() ? nullptr : chunk.bias.as<T>()),
        class_weights_(floats(chunk.class_weights)),
        cap_(chunk.softcap) {}

  void run(std::int64_t row) {
    logits_ = chunk_.logits.as<T>() + row * chunk_.logits.ld();
    const std::int64_t at = chunk_.positions.absent() ? chunk_.first + row : ints(chunk_.positions)[row];
    const std::int64_t y = ints(chunk_.targets)[at];

    const float largest_logit = max(), raw_target = static_cast<float>(logits_[y]) + bias(y);
    const float top = capped(largest_logit), target = capped(raw_target);
    const RowStatistics& statistics = chunk_.statistics;
    if (!statistics.argmax.absent()) statistics.argmax.as<std::int32_t>()[row] = first_of(largest_logit);
    float total = 0, spread = 0;
    sums(top, target, total, spread);
    const float log_sum = std::log(total);
    statistics.max.as<float>()[row] = top;
    statistics.log_sum.as<float>()[row] = log_sum;
    statistics.target.as<float>()[row] = target;
    if (!statistics.spread.absent()) statistics.spread.as<float>()[row] = spread;
    if (!chunk_.gradient) return;

    float row_scale = chunk_.gain;
    if (!chunk_.token_weights.absent()) row_scale *= floats(chunk_.token_weights)[at];
    if (!chunk_.row_upstream.absent()) row_scale *= floats(chunk_.row_upstream)[at];
    const float class_weight = class_weights_ == nullptr ? 1.0f : class_weights_[y];
    const RowFactors factors = row_factors(scales_, class_weight, scales_.class_sum, chunk_.label_smoothing,
                                           static_cast<float>(columns_), top + log_sum, row_scale);
    gradient(top, total, factors);
    // The target's own entry: p - 1 without the cancellation.
    const float down = target - top - log_sum;
    const float own =
        factors.own * std::expm1(down) + std::exp(down) * (factors.all - factors.own) - factors.each * class_weight;
    logits_[y] = T(own * (cap_ > 0 ? slope(splat(raw_target))[0] : 1.0f));
  }

 private:
  float bias(std::int64_t v) const { return bias_ == nullptr ? 0.0f : static_cast<float>(bias_[v]); }
  float capped(float z) const { return cap_ > 0 ? cap_ * std::tanh(z / cap_) : z; }
  // The derivative of the capped logit by the raw one: 1 - tanh², without the cancellation.
  f32v slope(f32v z) const {
    const f32v e = backend::cpu::exp(maximum(z, -z) * (-2.0f / cap_));
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
  }

  // The logits before softcap.
  [[gnu::always_inline]] f32v raw(std::int64_t v, std::int64_t n) const {
    f32v z = read(logits_ + v, n);
    if constexpr (!plain) {
      if (bias_ != nullptr) z += read(bias_ + v, n);
    }
    return z;
  }
  [[gnu::always_inline]] f32v value(std::int64_t v, std::int64_t n) const {
    f32v z = raw(v, n);
    if constexpr (!plain) {
      if (cap_ > 0) z = cap_ * tanh(z * (1.0f / cap_));
    }
    return z;
  }
  [[gnu::always_inline]] f32v class_weight(std::int64_t v, std::int64_t n) const {
    return class_weights_ == nullptr ? splat(1.0f) : read(class_weights_ + v, n);
  }

  float max() const {
    // Four at a time: a single running maximum would wait for itself.
    f32v best[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
    std::int64_t v = 0;
    for (; v + 4 * lanes <= columns_; v += 4 * lanes) {
      for (int i = 0; i < 4; ++i) best[i] = maximum(raw(v + i * lanes, lanes), best[i]);
    }
    for (; v < columns_; v += lanes) {
      const std::int64_t n = std::min(lanes, columns_ - v);
      best[0] = maximum(only(raw(v, n), n, lowest), best[0]);
    }
    return largest(maximum(maximum(best[0], best[1]), maximum(best[2], best[3])));
  }

  std::int32_t first_of(float wanted) const {
    for (std::int64_t v = 0; v < columns_; v += lanes) {
      const std::int64_t n = std::min(lanes, columns_ - v);
      const f32v z = only(raw(v, n), n, lowest);
      if (largest(z) < wanted) continue;
      for (std::int64_t i = 0; i < n; ++i) {
        if (z[i] == wanted) return static_cast<std::int32_t>(v + i);
      }
    }
    return 0;  // NaN everywhere: the loss will say so
  }

  void sums(float top, float target, float& total, float& spread) const {
    f32v total_v{}, spread_v{};
    each_vector(columns_, [&](std::int64_t v, std::int64_t n) {
      const f32v z = value(v, n);
      total_v += only(backend::cpu::exp(z - top), n, 0.0f);
      if constexpr (!plain) {
        if (chunk_.label_smoothing > 0) spread_v += only(class_weight(v, n) * (target - z), n, 0.0f);
      }
    });
    total = sum(total_v);
    spread = sum(spread_v);
  }

  // Logits = dZ.
  void gradient(float top, float total, const RowFactors& factors) {
    const float scale = factors.all / total;
    each_vector(columns_, [&](std::int64_t v, std::int64_t n) {
      const f32v z = value(v, n);
      f32v dz = backend::cpu::exp(z - top) * scale;
      if constexpr (!plain) {
        if (factors.each != 0) dz -= class_weight(v, n) * factors.each;
        if (cap_ > 0) dz *= slope(raw(v, n));
      }
      if (n == lanes) {
        store(logits_ + v, dz);
      } else {
        store_some(logits_ + v, dz, n);
      }
    });
  }

  const SoftmaxChunk& chunk_;
  const LossScales& scales_;
  std::int64_t columns_;
  const T* bias_;
  const float* class_weights_;
  float cap_;
  T* logits_ = nullptr;
};

template <class T>
void rows_of(const SoftmaxChunk& chunk, const LossScales& scales) {
  // Class weights alone are a factor of the row; only smoothing reads them column by column.
  const bool plain = chunk.bias.absent() && chunk.softcap == 0 && chunk.label_smoothing == 0;
  const std::int64_t grain = 1 + 16384 / chunk.logits.dim(1);  // rows worth waking a thread for
  parallel_for(chunk.logits.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
    if (plain) {
      Row<T, true> row(chunk, scales);
      for (std::int64_t i = begin; i < end; ++i) row.run(i);
    } else {
      Row<T, false> row(chunk, scales);
      for (std::int64_t i = begin; i < end; ++i) row.run(i);
    }
  });
}

}  // namespace

void softmax_gradient(Exec&, const SoftmaxChunk& chunk) {
  LossScales scales;
  std::memcpy(&scales, chunk.scales.data(), sizeof scales);
  switch (chunk.logits.dtype()) {
    case DType::f32: return rows_of<float>(chunk, scales);
    case DType::bf16: return rows_of<bf16>(chunk, scales);
    case DType::f16: return rows_of<f16>(chunk, scales);
    default: INLAY_ASSERT(false, "softmax_gradient of {}", name_of(chunk.logits.dtype()));
  }
}

}  // namespace inlay::ops::cpu
