#pragma once

#include "options/fields.h"

// The keys of adapters, which are axolotl's.
namespace inlay::options::option {

const std::vector<Field>& adapter_fields();

bool is_adapter_key(const std::string& name);

// Everything that is wrong with them together is one UserError.
void validate_adapter(const TrainOptions& options, const std::string& source);

}  // namespace inlay::options::option
