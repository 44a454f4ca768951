#pragma once

#include <string_view>
#include <vector>

#include "backend/exec.h"

namespace inlay::weights {

// W = uᵀ · diag(s) · v in fp64, R = min(N, M). Rows are directions.
struct ThinSvd {
  View u;                 // [R, N], orthonormal rows
  View v;                 // [R, M], orthonormal rows
  std::vector<double> s;  // [R], on the host: descending, and 0 from `rank` on
  std::int64_t rank = 0;  // singular values above rounding; R in a plan
};

// What becomes of directions that W leaves open because its rank is lower than R.
enum class OpenDirections : bool {
  fill,  // any that complete u and v to orthonormal rows
  drop,  // rows of the longer side from `rank` on hold nothing
};

// Decomposes W [N, M], fp32 or bf16. The vectors are scratch of the caller's scope. A plan takes the most that any
// matrix of the shape needs: about 2·N·M + 2·R² numbers of fp64, or N·M + 2·R² and the eigensolver's workspace.
ThinSvd thin_svd(backend::Exec& exec, ConstView w, OpenDirections open, std::string_view name);

}  // namespace inlay::weights
