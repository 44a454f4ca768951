#pragma once

#include "options/key_problems.h"

// The keys that say what is learned: the loss, preferences, distillation.
namespace inlay::options::option {

const std::vector<Field>& objective_fields();

// Whether a key means something beside these: others are not written.
bool serves_objective(const TrainOptions& options, const std::string& key);

void validate_objective(const TrainOptions& options, KeyProblems& problems);

}  // namespace inlay::options::option
