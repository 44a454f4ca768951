#pragma once

#include "options/key_problems.h"

// The keys of adapters, which are axolotl's.
namespace inlay::options::option {

const std::vector<Field>& adapter_fields();

bool is_adapter_key(const std::string& name);

void validate_adapter(const TrainOptions& options, KeyProblems& problems);

}  // namespace inlay::options::option
