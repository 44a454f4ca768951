#include "train/generate.h"

namespace inlay::train {

std::vector<std::vector<std::int32_t>> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                                const GenerateOptions& options) {
  return model::continue_texts(engine.exec(), engine.decoder(), prompts,
                               {.count = options.count,
                                .stops = options.stops,
                                .drawing = options.drawing,
                                .made = options.made,
                                .ended = options.ended});
}

std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options) {
  return generate(engine, std::span(&prompt, 1), options).front();
}

}  // namespace inlay::train
