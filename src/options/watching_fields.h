#pragma once

#include "options/key_problems.h"

// The keys of early stopping, of the best checkpoint and of boards, which are those of axolotl and transformers.
namespace inlay::options::option {

const std::vector<Field>& watching_fields();

void validate_watching(const TrainOptions& options, KeyProblems& problems);

}  // namespace inlay::options::option
