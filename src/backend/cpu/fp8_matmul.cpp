#include "backend/cpu/fp8_matmul.h"

#include "backend/cpu/matmul.h"
#include "backend/cpu/parallel.h"
#include "core/fp8.h"

namespace inlay::backend::cpu {

namespace {

const float& scale_at(const Fp8Matrix& m, std::int64_t row, std::int64_t col) {
  const auto* scales = static_cast<const float*>(m.scales.data());
  switch (m.scaling) {
    case Fp8Scaling::tensor: return scales[0];
    case Fp8Scaling::row: return scales[row];
    case Fp8Scaling::vector: return scales[col / fp8_block * m.scales.ld() + row];
    case Fp8Scaling::square: return scales[row / fp8_block * m.scales.ld() + col / fp8_block];
  }
  return scales[0];
}

View open(Exec& exec, const Fp8Matrix& m) {
  const View opened = exec.arena().scratch("opened operand", DType::f32, {m.rows, m.cols});
  if (exec.planning()) return opened;
  parallel_for(m.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto* codes = static_cast<const std::uint8_t*>(m.codes.data()) + row * m.codes.ld();
      float* to = opened.as<float>() + row * m.cols;
      for (std::int64_t col = 0; col < m.cols; ++col) {
        to[col] = fp8::value_of(m.codes.dtype(), codes[col]) * scale_at(m, row, col);
      }
    }
  });
  return opened;
}

}  // namespace

void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale) {
  const View left = open(exec, a), right = open(exec, b);
  const bool rounds = c.dtype() == DType::bf16;
  const View sums = rounds ? exec.arena().scratch("sums", DType::f32, {c.dim(0), c.dim(1)}) : c;
  const View workspace = exec.arena().scratch("matmul workspace", DType::u8,
                                              {matmul_workspace_bytes(DType::f32, c.dim(0), c.dim(1), a.cols)});
  if (exec.planning()) return;
  matmul(workspace, sums, left, Transpose::no, right, Transpose::yes,
         {.alpha = scale.alpha, .beta = rounds ? 0.0f : scale.beta, .device_alpha = scale.device_alpha});
  if (!rounds) return;
  parallel_for(c.dim(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      bf16* to = c.as<bf16>() + row * c.ld();
      const float* from = sums.as<float>() + row * c.dim(1);
      for (std::int64_t col = 0; col < c.dim(1); ++col) {
        to[col] = bf16(from[col] + (scale.beta != 0.0f ? static_cast<float>(to[col]) : 0.0f));
      }
    }
  });
}

}  // namespace inlay::backend::cpu
