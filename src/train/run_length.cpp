#include "train/run_length.h"

#include <cmath>

#include <fmt/format.h>

#include "core/text.h"

namespace inlay::train {

RunLength run_length(std::int64_t steps, const data::BatchSampler& sampler, std::int64_t micro_batches,
                     double tokens_per_second) {
  const std::int64_t batches = sampler.batches_per_epoch(0);
  const auto per_epoch = static_cast<double>((batches + micro_batches - 1) / micro_batches);
  RunLength length{.steps = steps, .epochs = static_cast<double>(steps) / per_epoch};
  length.tokens = std::llround(length.epochs * static_cast<double>(sampler.tokens_per_epoch()));
  if (tokens_per_second > 0) length.seconds = static_cast<double>(length.tokens) / tokens_per_second;
  return length;
}

std::string text_of(const RunLength& length) {
  std::string text = fmt::format("{} step{}", format_count(length.steps), length.steps == 1 ? "" : "s");
  if (length.epochs > 0) {
    const double tenths = std::round(10 * length.epochs) / 10;
    text += fmt::format(" over {} epoch{}", tenths > 0 ? fmt::format("{}", tenths) : "less than 0.1",
                        tenths == 1 ? "" : "s");
  }
  if (length.tokens > 0) text += fmt::format(", about {} tokens", format_count(length.tokens));
  if (length.seconds >= 1) {
    text += fmt::format(", about {} without evaluations and checkpoints", format_duration(length.seconds));
  }
  return text;
}

}  // namespace inlay::train
