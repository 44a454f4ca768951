#pragma once

#include "backend/matmul.h"

namespace inlay::backend::cuda {

// What a product may use beyond its operands; matmul() takes it from the arena for the time of the call.
inline constexpr std::int64_t matmul_workspace_bytes = std::int64_t{32} << 20;

// backend::matmul on the device, arguments checked by the caller. workspace: bytes (u8) on the device.
void matmul(Exec& exec, View workspace, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale);

}  // namespace inlay::backend::cuda
