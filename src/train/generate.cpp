#include "train/generate.h"

#include <algorithm>

namespace inlay::train {

std::vector<std::int32_t> generate(Engine& engine, std::vector<std::int32_t> prompt, std::int64_t count,
                                   std::int32_t stop) {
  std::vector<std::int32_t> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const Document document{.input_ids = prompt, .labels = std::vector<std::int32_t>(prompt.size(), ignore_label)};
    const auto last = static_cast<std::int32_t>(prompt.size()) - 1;
    const std::vector<float> logits = engine.decoder().logits(engine.exec(), pack(std::span(&document, 1)), {last});
    const auto next = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (next == stop) break;
    made.push_back(next);
    prompt.push_back(next);
  }
  return made;
}

}  // namespace inlay::train
