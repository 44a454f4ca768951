#pragma once

#include <string_view>
#include <vector>

#include "backend/exec.h"

namespace inlay::weights {

// The largest singular directions of a matrix: W ≈ Σ sᵢ·uᵢᵀ·vᵢ. Rows are directions; scratch of the caller's scope.
struct TopDirections {
  View u;                 // fp32 [rank, N], orthonormal rows
  View v;                 // fp32 [rank, M], orthonormal rows
  std::vector<double> s;  // [rank], on the host: descending
};

// Of W [N, M], fp32, the first `rank`, which must not exceed min(N, M). By subspace iteration from random directions,
// always the same: of 4096 × 14336 numbers a decomposition of all would take minutes. The host waits for the result.
TopDirections top_directions(backend::Exec& exec, ConstView w, std::int64_t rank, std::string_view name = "a weight");

}  // namespace inlay::weights
