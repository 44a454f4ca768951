#include "ops/token_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "backend/cpu/parallel.h"
#include "backend/cpu/vec.h"

namespace inlay::ops::cpu {

using namespace backend::cpu;

namespace {

// The most likely logits of a row, in descending order.
template <class T>
void find_largest(std::vector<float>& largest_ones, const T* row, std::int64_t columns, std::size_t count) {
  largest_ones.clear();
  const auto meet = [&](float value) {  // a heap whose front is its smallest
    if (largest_ones.size() == count) {
      if (!(value > largest_ones.front())) return;
      std::pop_heap(largest_ones.begin(), largest_ones.end(), std::greater<>());
      largest_ones.pop_back();
    }
    largest_ones.push_back(value);
    std::push_heap(largest_ones.begin(), largest_ones.end(), std::greater<>());
  };
  std::int64_t v = 0;
  for (; v + lanes <= columns; v += lanes) {
    const f32v values = load(row + v);
    if (largest_ones.size() == count && !(largest(values) > largest_ones.front())) continue;
    for (std::int64_t i = 0; i < lanes; ++i) meet(values[i]);
  }
  for (; v < columns; ++v) meet(static_cast<float>(row[v]));
  std::sort(largest_ones.begin(), largest_ones.end(), std::greater<>());
}

double entropy_share(const std::vector<float>& logits, float softcap) {
  const auto capped = [&](float z) {
    return softcap > 0 ? static_cast<double>(softcap) * std::tanh(static_cast<double>(z / softcap))
                       : static_cast<double>(z);
  };
  const double top = capped(logits.front());
  double sum = 0, moment = 0;
  for (const float z : logits) {
    const double below = capped(z) - top, e = std::exp(below);
    sum += e;
    moment += e * below;
  }
  return (std::log(sum) - moment / sum) / std::log(static_cast<double>(logits.size()));
}

template <class T>
void rows_of(const RuledRows& rows, const TokenRuleSpec& spec) {
  const std::int64_t columns = rows.logits.dim(1);
  const auto most_likely = static_cast<std::size_t>(std::min<std::int64_t>(spec.most_likely, columns));
  const float temperature = spec.temperature.absent() ? 1.0f : *spec.temperature.as<float>();
  const std::int64_t grain = spec.rule == TokenRule::eaft ? 1 + 16384 / columns : 256;
  parallel_for(rows.logits.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> largest_ones;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = rows.positions.absent() ? rows.first + i : rows.positions.as<std::int32_t>()[i];
      const RowStatistics& s = rows.statistics;
      const float log_p = s.target.as<float>()[i] - s.max.as<float>()[i] - s.log_sum.as<float>()[i];
      float factor = 1;
      if (spec.rule == TokenRule::dft) factor = std::exp(log_p);
      if (spec.rule == TokenRule::talr) factor = std::max(std::exp(log_p / temperature), spec.least);
      if (spec.rule == TokenRule::eaft) {
        find_largest(largest_ones, rows.logits.as<T>() + i * rows.logits.ld(), columns, most_likely);
        factor = static_cast<float>(entropy_share(largest_ones, rows.softcap));
      }
      const float given = rows.token_weights.absent() ? 1.0f : rows.token_weights.as<float>()[at];
      rows.weights.as<float>()[at] = given * factor;
    }
  });
}

}  // namespace

void token_rule(Exec&, const RuledRows& rows, const TokenRuleSpec& spec) {
  switch (rows.logits.dtype()) {
    case DType::f32: return rows_of<float>(rows, spec);
    case DType::bf16: return rows_of<bf16>(rows, spec);
    case DType::f16: return rows_of<f16>(rows, spec);
    default: INLAY_ASSERT(false, "token_rule of {}", name_of(rows.logits.dtype()));
  }
}

}  // namespace inlay::ops::cpu
