#include "train/generate.h"

#include <algorithm>
#include <numeric>

#include "core/interrupt.h"

namespace inlay::train {

std::vector<std::vector<std::int32_t>> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                                const GenerateOptions& options) {
  return model::continue_texts(engine.exec(), engine.decoder(), prompts,
                               {.count = options.count,
                                .stops = options.stops,
                                .keep_stop = options.keep_stop,
                                .drawing = options.drawing,
                                .ranks = options.ranks,
                                .made = options.made,
                                .ended = options.ended});
}

std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options) {
  return generate(engine, std::span(&prompt, 1), options).front();
}

std::int64_t answers_at_once(const Machine& machine, const model::ModelConfig& config, std::size_t count,
                             std::int64_t longest) {
  // A step costs the GPU hardly more for many texts than for one; a CPU is busy with a few.
  const bool gpu = machine.device == Device::cuda;
  const std::int64_t most = gpu ? 256 : 16, bytes = std::int64_t{gpu ? 8 : 1} << 30;
  const std::int64_t token = 2 * config.layer_count() * config.kv_heads * config.head_dim *
                             static_cast<std::int64_t>(size_of(machine.compute));
  const std::int64_t fitting = std::clamp<std::int64_t>(bytes / (token * longest), 1, most);
  return std::min(static_cast<std::int64_t>(count), fitting);
}

void plan_answers(EngineOptions& engine, const model::ModelConfig& config, std::size_t count, std::int64_t longest) {
  engine.decode_sequences = answers_at_once({engine.device, engine.compute}, config, count, longest);
  engine.decode_length = longest;
}

std::vector<std::vector<std::int32_t>> answer_all(Engine& engine, const std::vector<std::vector<std::int32_t>>& prompts,
                                                  const GenerateOptions& options, Console& console) {
  // Prompts of about one length together: a short one would wait in the memory of a long one.
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return prompts[i].size(); });
  const auto at_once = static_cast<std::size_t>(engine.options().decode_sequences);
  std::vector<std::vector<std::int32_t>> answers(prompts.size());
  for (std::size_t first = 0; first < order.size(); first += at_once) {
    const std::size_t end = std::min(first + at_once, order.size());
    std::vector<std::vector<std::int32_t>> some;
    for (std::size_t i = first; i < end; ++i) some.push_back(prompts[order[i]]);
    model::WritingOptions writing{
        .count = options.count, .stops = options.stops, .keep_stop = options.keep_stop, .drawing = options.drawing};
    writing.drawing.first_sequence += static_cast<std::int64_t>(first);
    writing.progress = [&](std::int64_t done, std::int64_t total) {
      stop_where_asked("answering");
      const auto tokens = [&](std::size_t texts, std::int64_t each) { return static_cast<std::int64_t>(texts) * each; };
      console.progress_count("answering: tokens", tokens(first, total) + tokens(end - first, done),
                             tokens(order.size(), total));
    };
    std::vector<std::vector<std::int32_t>> made = model::continue_texts(engine.exec(), engine.decoder(), some, writing);
    for (std::size_t i = first; i < end; ++i) answers[order[i]] = std::move(made[i - first]);
  }
  return answers;
}

}  // namespace inlay::train
