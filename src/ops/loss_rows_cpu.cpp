#include <array>
#include <cstring>
#include <limits>

#include "backend/cpu/parallel.h"
#include "backend/cpu/vec.h"
#include "ops/loss_rows.h"

namespace inlay::ops::cpu {

using backend::cpu::parallel_for;

namespace {

const float* floats(const ConstView& view) { return view.absent() ? nullptr : view.as<float>(); }
const std::int32_t* ints(const ConstView& view) { return view.absent() ? nullptr : view.as<std::int32_t>(); }

std::int64_t position(const std::int32_t* positions, std::int64_t row) {
  return positions == nullptr ? row : positions[row];
}

auto row_of(const View& view, std::int64_t row) { return view.slice_rows(row, row + 1).data(); }
auto row_of(const ConstView& view, std::int64_t row) { return view.slice_rows(row, row + 1).data(); }

// Columns are summed strip by strip: a strip's accumulators stay in registers while its rows are read in order.
constexpr std::int64_t strip = 4 * backend::cpu::lanes;

template <class T>
void sum_columns(float* sums, bool add, const T* dz, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                 float alpha) {
  using namespace backend::cpu;
  const std::int64_t strips = (columns + strip - 1) / strip;
  parallel_for(strips, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t first = s * strip, width = std::min(strip, columns - first);
      std::array<f32v, 4> total{};
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* from = dz + row * ld + first;
        for (std::int64_t part = 0; part < 4; ++part) {
          const std::int64_t rest = width - part * lanes;
          if (rest >= lanes) {
            total[static_cast<std::size_t>(part)] += load(from + part * lanes);
          } else if (rest > 0) {
            total[static_cast<std::size_t>(part)] += load_some(from + part * lanes, rest);
          }
        }
      }
      float values[strip];
      std::memcpy(values, total.data(), sizeof values);
      for (std::int64_t i = 0; i < width; ++i) {
        sums[first + i] = alpha * values[i] + (add ? sums[first + i] : 0.0f);
      }
    }
  });
}

}  // namespace

void loss_scales(Exec&, const LossCall& call, float gain) {
  const LossInputs& inputs = call.inputs;
  const std::int32_t *positions = ints(inputs.rows), *targets = ints(inputs.targets);
  const float *class_weights = floats(inputs.class_weights), *token_weights = floats(inputs.token_weights);
  Divisors divisors = divisors_of(call);
  if (divisors.sum_weights || divisors.sum_counts) {
    double weight_sum = 0, count_sum = 0;
    for (std::int64_t row = 0; row < call.count; ++row) {
      const std::int64_t at = position(positions, row);
      const double weight = token_weights == nullptr ? 1.0 : static_cast<double>(token_weights[at]);
      weight_sum += class_weights == nullptr ? weight : weight * static_cast<double>(class_weights[targets[at]]);
      count_sum += weight;
    }
    if (divisors.sum_weights) divisors.weight_sum = weight_sum;
    if (divisors.sum_counts) divisors.count_sum = count_sum;
  }
  double class_sum = static_cast<double>(call.columns);
  if (class_weights != nullptr && call.options.label_smoothing > 0) {
    class_sum = 0;
    for (std::int64_t v = 0; v < call.columns; ++v) class_sum += static_cast<double>(class_weights[v]);
  }
  const bool scalar_upstream = call.options.reduction != Reduction::none && !inputs.upstream.absent();
  const LossScales scales =
      make_scales(divisors.weight_sum, divisors.count_sum, call.options.z_loss,
                  scalar_upstream ? *inputs.upstream.as<float>() : 1.0f, gain, static_cast<float>(class_sum));
  std::memcpy(call.scales.data(), &scales, sizeof scales);
}

void finish_loss(Exec&, const LossCall& call) {
  const LossInputs& inputs = call.inputs;
  const LossOutputs& outputs = call.outputs;
  LossScales scales;
  std::memcpy(&scales, call.scales.data(), sizeof scales);
  const std::int32_t *positions = ints(inputs.rows), *targets = ints(inputs.targets);
  const float *class_weights = floats(inputs.class_weights), *token_weights = floats(inputs.token_weights);
  const float *max = floats(call.statistics.max), *log_sum = floats(call.statistics.log_sum);
  const float *target = floats(call.statistics.target), *spread = floats(call.statistics.spread);
  const std::int32_t* argmax = ints(call.statistics.argmax);
  const float *divergence = floats(call.divergence), *given = floats(call.given_weights);
  const bool none = call.options.reduction == Reduction::none;
  float* loss = outputs.loss.absent() ? nullptr : outputs.loss.as<float>();
  float* z_loss = outputs.z_loss.absent() ? nullptr : outputs.z_loss.as<float>();
  std::int32_t* predicted = outputs.predicted.absent() ? nullptr : outputs.predicted.as<std::int32_t>();
  if (none && loss != nullptr) std::fill_n(loss, call.tokens, 0.0f);
  if (none && z_loss != nullptr) std::fill_n(z_loss, call.tokens, 0.0f);
  if (predicted != nullptr) std::fill_n(predicted, call.tokens, -1);

  double loss_sum = 0, z_sum = 0, other_sum = 0;
  std::int32_t correct = 0;
  for (std::int64_t row = 0; row < call.count; ++row) {
    const std::int64_t at = position(positions, row);
    const float weight = token_weights == nullptr ? 1.0f : token_weights[at];
    const float class_weight = class_weights == nullptr ? 1.0f : class_weights[targets[at]];
    const float nll = log_sum[row] + (max[row] - target[row]), lse = max[row] + log_sum[row];
    const float ce = row_loss(class_weight, scales.class_sum, call.options.label_smoothing,
                              static_cast<float>(call.columns), nll, spread == nullptr ? 0.0f : spread[row]);
    const float other_weight = given == nullptr ? 1.0f : given[at];
    const auto [whole, z_part, other_part] = joined_loss(scales, call.options.divergence, weight, other_weight, ce, lse,
                                                         divergence == nullptr ? 0.0f : divergence[row]);
    loss_sum += static_cast<double>(whole);
    z_sum += static_cast<double>(z_part);
    other_sum += static_cast<double>(other_part);
    if (none && loss != nullptr) loss[at] = whole;
    if (none && z_loss != nullptr) z_loss[at] = z_part;
    if (predicted != nullptr) predicted[at] = argmax[row];
    if (argmax != nullptr) correct += argmax[row] == targets[at] ? 1 : 0;
  }
  if (!none && loss != nullptr) *loss += static_cast<float>(loss_sum);
  if (!none && z_loss != nullptr) *z_loss += static_cast<float>(z_sum);
  if (!outputs.divergence.absent()) *outputs.divergence.as<float>() += static_cast<float>(other_sum);
  if (!outputs.correct.absent()) *outputs.correct.as<std::int32_t>() += correct;
}

void gather_piece(Exec&, View to, ConstView from, ConstView positions) {
  const std::int32_t* rows = ints(positions);
  const std::size_t bytes = static_cast<std::size_t>(to.dim(1)) * size_of(to.dtype());
  parallel_for(to.dim(0), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) std::memcpy(row_of(to, row), row_of(from, rows[row]), bytes);
  });
}

void scatter_piece(Exec&, View to, ConstView from, ConstView positions, std::int64_t begin, std::int64_t end) {
  const std::int32_t* rows = ints(positions);
  const std::int64_t count = positions.absent() ? 0 : positions.dim(0);
  const std::size_t bytes = static_cast<std::size_t>(to.dim(1)) * size_of(to.dtype());
  std::int64_t next = begin == 0 ? 0 : rows[begin - 1] + 1;  // everything before is done
  for (std::int64_t row = begin; row < end; ++row) {
    for (; next < rows[row]; ++next) std::memset(row_of(to, next), 0, bytes);
    std::memcpy(row_of(to, next++), row_of(from, row - begin), bytes);
  }
  if (end < count) return;
  for (; next < to.dim(0); ++next) std::memset(row_of(to, next), 0, bytes);
}

void column_sums(Exec&, View sums, Grad mode, ConstView dz, const float* alpha) {
  float* to = sums.as<float>();
  const bool add = mode == Grad::accumulate;
  switch (dz.dtype()) {
    case DType::f32: return sum_columns(to, add, dz.as<float>(), dz.dim(0), dz.dim(1), dz.ld(), *alpha);
    case DType::bf16: return sum_columns(to, add, dz.as<bf16>(), dz.dim(0), dz.dim(1), dz.ld(), *alpha);
    case DType::f16: return sum_columns(to, add, dz.as<f16>(), dz.dim(0), dz.dim(1), dz.ld(), *alpha);
    default: INLAY_ASSERT(false, "column_sums of {}", name_of(dz.dtype()));
  }
}

void spread_kept(Exec&, View logits, const OtherModel& other, ConstView positions, std::int64_t first) {
  const std::int64_t columns = logits.dim(1), kept = other.ids.dim(1);
  parallel_for(logits.dim(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* to = logits.as<float>() + row * logits.ld();
      const std::int64_t at = positions.absent() ? first + row : ints(positions)[row];
      std::fill_n(to, columns, -std::numeric_limits<float>::infinity());
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int32_t id = ints(other.ids)[at * other.ids.ld() + i];
        if (id >= 0) to[id] = floats(other.log_probs)[at * other.log_probs.ld() + i];
      }
    }
  });
}

}  // namespace inlay::ops::cpu
