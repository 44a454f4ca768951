#pragma once

#include "backend/exec.h"

namespace inlay::backend {

enum class Transpose : bool { no, yes };

struct MatmulScale {
  float alpha = 1.0f;
  float beta = 0.0f;                    // any value on the host side; 0 or 1 when device_alpha is given
  const float* device_alpha = nullptr;  // multiplies alpha; lives on the device, so that no host has to wait for it
};

// C = alpha · op(A) · op(B) + beta · C, row-major, fp32 accumulation. A and B share a dtype (fp32, bf16, fp16); C has
// that dtype or fp32. op(A) is [M, K], op(B) is [K, N], C is [M, N]; rows may be strided. fp32 products are true fp32.
// The same arguments give the same bits.
void matmul(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale = {});

}  // namespace inlay::backend
