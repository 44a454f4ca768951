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
    max = lowest;
    for (std::int64_t v = 0; v < columns; v += lanes) {
      const std::int64_t n = std::min(lanes, columns - v);
      f32v value = n == lanes ? load(from + v) : load_some(from + v, n);
      if (softcap > 0) value = softcap * tanh(value * (1.0f / softcap));
      if (n == lanes) {
        store(z.data() + v, value);
      } else {
        store_some(z.data() + v, value, n);
      }
      for (std::int64_t i = 0; i < n; ++i) max = std::max(max, value[i]);
    }
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

template <class T, class Other>
class Row {
 public:
  Row(const DivergenceChunk& chunk, const LossScales& scales) : chunk_(chunk), scales_(scales) {}

  void run(std::int64_t row) {
    const SoftmaxChunk& own = chunk_.own;
    const DivergenceSpec& spec = chunk_.spec;
    const std::int64_t columns = own.logits.dim(1);
    T* logits = own.logits.as<T>() + row * own.logits.ld();
    const std::int64_t at = own.positions.absent() ? own.first + row : own.positions.as<std::int32_t>()[row];
    const std::int32_t y = own.targets.as<std::int32_t>()[at];
    const float raw_target = static_cast<float>(logits[y]);
    ours_.read(logits, columns, own.softcap, spec.temperature);
    theirs_.read(chunk_.others.as<Other>() + row * chunk_.others.ld(), columns, chunk_.others_softcap,
                 spec.temperature);

    const float target = ours_.z[static_cast<std::size_t>(y)], inverse = 1.0f / spec.temperature;
    // Where nothing is known of the other model's prediction there is nothing to diverge from.
    const bool known = theirs_.max > lowest;
    double divergence = 0, own_sum = 0, spread = 0;
    for (std::int64_t v = 0; v < columns; ++v) {
      const auto i = static_cast<std::size_t>(v);
      spread += static_cast<double>(target - ours_.z[i]);
      if (!known) continue;
      const DivergenceTerms terms =
          divergence_terms(spec, ours_.z[i] * inverse - ours_.lse, theirs_.z[i] * inverse - theirs_.lse);
      divergence += static_cast<double>(terms.divergence);
      own_sum += static_cast<double>(terms.own);
    }
    const RowStatistics& statistics = own.statistics;
    statistics.max.as<float>()[row] = ours_.max;
    statistics.log_sum.as<float>()[row] = ours_.log_sum;
    statistics.target.as<float>()[row] = target;
    if (!statistics.spread.absent()) statistics.spread.as<float>()[row] = static_cast<float>(spread);
    if (!statistics.argmax.absent()) {
      const auto top = std::max_element(ours_.z.begin(), ours_.z.end());
      statistics.argmax.as<std::int32_t>()[row] = static_cast<std::int32_t>(top - ours_.z.begin());
    }
    chunk_.divergence.as<float>()[row] = static_cast<float>(divergence);
    if (!own.gradient) return;

    float row_scale = own.gain, other_scale = own.gain;
    if (!own.token_weights.absent()) row_scale *= own.token_weights.as<float>()[at];
    if (!chunk_.weights.absent()) other_scale *= chunk_.weights.as<float>()[at];
    const float lse = ours_.max + ours_.log_sum;
    const RowFactors factors =
        row_factors(scales_, 1.0f, scales_.class_sum, own.label_smoothing, static_cast<float>(columns), lse, row_scale);
    // weight · temperature² / temperature, and what row_factors takes of the divisor
    const float outer = other_scale * scales_.ce_gradient * spec.weight * spec.temperature;
    const float down = target - lse, cap = own.softcap;
    for (std::int64_t v = 0; v < columns; ++v) {
      const auto i = static_cast<std::size_t>(v);
      const float z = ours_.z[i];
      float ce = std::exp(z - lse) * factors.all - factors.each;
      if (v == y) ce = factors.own * std::expm1(down) + std::exp(down) * (factors.all - factors.own) - factors.each;
      float dz = spec.ce_weight * ce;
      if (known)
        dz += outer * divergence_slope(spec, z * inverse - ours_.lse, theirs_.z[i] * inverse - theirs_.lse,
                                       static_cast<float>(own_sum));
      if (cap > 0) {
        const float raw = v == y ? raw_target : static_cast<float>(logits[v]);
        const float e = std::exp(-2.0f * std::abs(raw) / cap);
        dz *= 4.0f * e / ((1.0f + e) * (1.0f + e));
      }
      logits[v] = T(dz);
    }
  }

 private:
  const DivergenceChunk& chunk_;
  const LossScales& scales_;
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
