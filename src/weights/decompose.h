#pragma once

#include <string_view>

#include "backend/exec.h"

namespace inlay::weights {

// The singular value decomposition W = uᵀ · diag(s) · v of W [N, M], R = min(N, M). Rows are directions.
struct Decomposition {
  View u;  // fp32 [R, N], orthonormal rows
  View s;  // fp32 [R], descending, none negative
  View v;  // fp32 [R, M], orthonormal rows
};

// W is fp32 or bf16. Orthonormal to fp32 rounding on both sides, whatever the singular values are: repeated, tiny,
// zero. The work is done in fp64, in scratch; see thin_svd.h for how much. `name` is for the message to a user whose
// weights are not finite. The host waits for the result.
void decompose(backend::Exec& exec, const Decomposition& out, ConstView w, std::string_view name = "a weight");

}  // namespace inlay::weights
