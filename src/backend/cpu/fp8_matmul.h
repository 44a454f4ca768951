#pragma once

#include "backend/fp8_matmul.h"

namespace inlay::backend::cpu {

// backend::fp8_matmul on the host: a reference that opens the codes and multiplies in fp32. Plans, too.
void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale);

}  // namespace inlay::backend::cpu
