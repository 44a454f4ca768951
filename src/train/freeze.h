#pragma once

#include <set>
#include <string>
#include <vector>

#include "model/config.h"

namespace inlay::train {

// The parameters whose tensors match some of the patterns (of the checkpoint's names; * stands for anything). A pattern
// that matches nothing, or a part of what is one matrix here, is the user's mistake.
std::set<std::string> frozen_by_name(const std::vector<std::string>& patterns, const model::ModelConfig& config);

}  // namespace inlay::train
