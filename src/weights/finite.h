#pragma once

#include <string_view>

#include "backend/exec.h"

namespace inlay::weights {

// Throws a UserError that names the tensor where an fp64 matrix holds a NaN or an infinity: an eigensolver that meets
// one may not come back. Takes a little scratch.
void require_finite(backend::Exec& exec, ConstView matrix, std::string_view name);

}  // namespace inlay::weights
