#include "train/freeze.h"

#include <algorithm>

#include "core/text.h"
#include "model/parameters.h"

namespace inlay::train {

std::set<std::string> frozen_by_name(const std::vector<std::string>& patterns, const model::ModelConfig& config) {
  std::set<std::string> frozen;
  if (patterns.empty()) return frozen;
  std::set<std::string> used;
  const auto matched = [&](const weights::Part& part) {
    bool any = false;
    for (const std::string& pattern : patterns) {
      // Of stacked experts each has a label of its own, and the name of the one tensor means all of them.
      if (!matches(part.label(), pattern) && !matches(part.checkpoint_name, pattern)) continue;
      used.insert(pattern);
      any = true;
    }
    return any;
  };
  model::ModelParameters parameters(config);
  parameters.for_each([&](weights::Parameter& p) {
    const weights::Part* stays = nullptr;
    const weights::Part* trains = nullptr;
    for (const weights::Part& part : p.parts) (matched(part) ? stays : trains) = &part;
    if (stays == nullptr) return;
    if (trains != nullptr) {
      user_error("freeze: {} is frozen and {} is not, but they are computed together: freeze both or neither",
                 stays->label(), trains->label());
    }
    frozen.insert(p.name);
  });
  bool any = false;
  parameters.for_each([&](weights::Parameter& p) { any = any || !frozen.contains(p.name); });
  if (!any) user_error("freeze: no part of the model is left to train");
  for (const std::string& pattern : patterns) {
    if (!used.contains(pattern)) {
      user_error("freeze: '{}' matches no tensor; tensors are named like {}", pattern,
                 parameters.layers[0]->attention.output.parts[0].label());
    }
  }
  return frozen;
}

}  // namespace inlay::train
