#pragma once

#include "options/fields.h"

// The keys of early stopping, of the best checkpoint and of boards, which are those of axolotl and transformers.
namespace inlay::options::option {

const std::vector<Field>& watching_fields();

void validate_watching(const TrainOptions& options, const std::string& source);

}  // namespace inlay::options::option
