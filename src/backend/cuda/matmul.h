#pragma once

#include "backend/fp8_matmul.h"

namespace inlay::backend::cuda {

// What a product may use beyond its operands; matmul() takes it from the arena for the time of the call.
inline constexpr std::int64_t matmul_workspace_bytes = std::int64_t{32} << 20;

// backend::matmul on the device, arguments checked by the caller. workspace: bytes (u8) on the device.
void matmul(Exec& exec, View workspace, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale);
// backend::fp8_matmul likewise; C is [rows of A's codes, rows of B's].
void fp8_matmul(Exec& exec, View workspace, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale,
                Fp8Sums sums);
// to = from, two matrices of one dtype.
void copy_rows(Exec& exec, View to, ConstView from);

}  // namespace inlay::backend::cuda
