#pragma once

#include "backend/grouped_fp8_matmul.h"
#include "backend/grouped_matmul.h"

namespace inlay::backend::cuda {

// backend::grouped_matmul and grouped_matmul_over_rows on the device, arguments checked by the caller.
void grouped_matmul(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale);
void grouped_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha);

// The same of fp8, on Hopper GPUs alone and where their own code is part of the build.
bool grouped_fp8_built();
void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale, Fp8Sums sums);
void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha);

// The routes of grouped_matmul.cu. Each answers whether it could.
bool grouped_hopper(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale);
bool grouped_hopper_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha);
bool grouped_tensor(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale);
bool grouped_tensor_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha);

}  // namespace inlay::backend::cuda
