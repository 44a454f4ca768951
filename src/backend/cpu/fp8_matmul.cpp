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

View take_workspace(Exec& exec, std::int64_t m, std::int64_t n, std::int64_t k) {
  return exec.arena().scratch("matmul workspace", DType::u8, {matmul_workspace_bytes(DType::f32, m, n, k)});
}

// to = bf16(sums + beta · to)
void round_sums(View to, ConstView sums, float beta) {
  parallel_for(to.dim(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      bf16* c = to.as<bf16>() + row * to.ld();
      const float* from = sums.as<float>() + row * sums.ld();
      for (std::int64_t col = 0; col < to.dim(1); ++col) {
        c[col] = bf16(from[col] + (beta != 0.0f ? static_cast<float>(c[col]) : 0.0f));
      }
    }
  });
}

}  // namespace

void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale) {
  const View left = open(exec, a), right = open(exec, b);
  const bool rounds = c.dtype() == DType::bf16;
  const View sums = rounds ? exec.arena().scratch("sums", DType::f32, {c.dim(0), c.dim(1)}) : c;
  const View workspace = take_workspace(exec, c.dim(0), c.dim(1), a.cols);
  if (exec.planning()) return;
  matmul(workspace, sums, left, Transpose::no, right, Transpose::yes,
         {.alpha = scale.alpha, .beta = rounds ? 0.0f : scale.beta, .device_alpha = scale.device_alpha});
  if (rounds) round_sums(c, sums, scale.beta);
}

void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale) {
  const View left = open(exec, a);
  const bool rounds = c.dtype() == DType::bf16;
  const View sums = rounds ? exec.arena().scratch("sums", DType::f32, {c.dim(0), c.dim(1)}) : c;
  const View workspace = take_workspace(exec, c.dim(0), c.dim(1), a.cols);
  for (std::size_t g = 0; g < b.size(); ++g) {
    const ScratchScope scope(exec.arena());
    const View right = open(exec, b[g]);
    if (exec.planning()) return;
    const auto begin = offsets.as<std::int32_t>()[g], end = offsets.as<std::int32_t>()[g + 1];
    const View to = sums.slice_rows(begin, end);
    matmul(workspace, to, left.slice_rows(begin, end), Transpose::no, right, Transpose::yes,
           {.alpha = scale.alpha, .beta = rounds ? 0.0f : scale.beta});
    if (rounds) round_sums(c.slice_rows(begin, end), to, scale.beta);
  }
}

void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha) {
  const View left = open(exec, a), right = open(exec, b);
  const View workspace = take_workspace(exec, a.rows, b.rows, a.cols);
  if (exec.planning()) return;
  for (std::size_t g = 0; g < c.size(); ++g) {
    const auto begin = offsets.as<std::int32_t>()[g], end = offsets.as<std::int32_t>()[g + 1];
    if (c[g].absent()) continue;
    matmul(workspace, c[g], left.slice_cols(begin, end), Transpose::no, right.slice_cols(begin, end), Transpose::yes,
           {.alpha = alpha, .beta = mode == Grad::accumulate ? 1.0f : 0.0f});
  }
}

}  // namespace inlay::backend::cpu
