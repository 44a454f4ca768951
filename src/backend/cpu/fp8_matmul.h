#pragma once

#include "backend/grouped_fp8_matmul.h"

namespace inlay::backend::cpu {

// backend::fp8_matmul on the host: a reference that opens the codes and multiplies in fp32. Plans, too.
void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale);

// The same of rows that fall into groups (backend/grouped_fp8_matmul.h), group by group.
void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale);
void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha);

}  // namespace inlay::backend::cpu
