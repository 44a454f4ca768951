#pragma once

#include "backend/matmul.h"

namespace inlay::backend::cpu {

// What a product [m, k] · [k, n] uses beyond its operands; matmul() takes it from the arena for the time of the call.
// It suffices for every product of which no extent is larger.
std::int64_t matmul_workspace_bytes(DType operands, std::int64_t m, std::int64_t n, std::int64_t k);

// backend::matmul on the host, arguments checked by the caller. workspace: bytes (u8).
void matmul(View workspace, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale);

}  // namespace inlay::backend::cpu
