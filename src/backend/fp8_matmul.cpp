#include "backend/fp8_matmul.h"

#include "backend/cpu/fp8_matmul.h"
#include "backend/cuda/matmul.h"

namespace inlay::backend {

namespace {

constexpr std::int64_t row_multiple = 16;

std::int64_t blocks_of(std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; }
std::int64_t padded(std::int64_t extent, std::int64_t multiple) { return blocks_of(extent, multiple) * multiple; }

bool blockwise(const Fp8Matrix& m) { return m.scaling == Fp8Scaling::vector || m.scaling == Fp8Scaling::square; }

}  // namespace

Shape fp8_codes_shape(std::int64_t rows, std::int64_t cols) {
  return {padded(rows, row_multiple), padded(cols, fp8_block)};
}

Shape fp8_scales_shape(Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  switch (scaling) {
    case Fp8Scaling::tensor: return {1};
    case Fp8Scaling::row: return {padded(rows, row_multiple)};
    case Fp8Scaling::vector: return {blocks_of(cols, fp8_block), padded(rows, row_multiple)};
    case Fp8Scaling::square: return {blocks_of(rows, fp8_block), padded(blocks_of(cols, fp8_block), 4)};
  }
  return {};
}

void check_fp8_operand(const Fp8Matrix& m, std::string_view op, std::string_view name) {
  INLAY_ASSERT(m.codes.dtype() == DType::e4m3 || m.codes.dtype() == DType::e5m2, "{}: {} is {}", op, name,
               name_of(m.codes.dtype()));
  INLAY_ASSERT(m.codes.shape() == fp8_codes_shape(m.rows, m.cols) && m.codes.contiguous() &&
                   m.scales.shape() == fp8_scales_shape(m.scaling, m.rows, m.cols) && m.scales.dtype() == DType::f32,
               "{}: {} [{}, {}] has codes {} and scales {}", op, name, m.rows, m.cols, m.codes.shape().str(),
               m.scales.shape().str());
}

void check_fp8_scaling(const Fp8Matrix& a, const Fp8Matrix& b, std::string_view op) {
  INLAY_ASSERT(a.scaling != Fp8Scaling::square && (blockwise(a) ? blockwise(b) : a.scaling == b.scaling),
               "{}: A and B are scaled by unlike pieces", op);
}

void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale, Fp8Sums sums) {
  check_fp8_operand(a, "fp8_matmul", "A");
  check_fp8_operand(b, "fp8_matmul", "B");
  INLAY_ASSERT(c.rank() == 2 && c.dim(0) == a.rows && c.dim(1) == b.rows && a.cols == b.cols,
               "fp8_matmul: C {} is not A [{}, {}] times B [{}, {}]ᵀ", c.shape().str(), a.rows, a.cols, b.rows, b.cols);
  INLAY_ASSERT(c.dtype() == DType::bf16 || c.dtype() == DType::f32, "fp8_matmul: C is {}", name_of(c.dtype()));
  INLAY_ASSERT(scale.beta == 0.0f || scale.beta == 1.0f, "fp8_matmul: beta is {}, expected 0 or 1", scale.beta);
  check_fp8_scaling(a, b, "fp8_matmul");
  INLAY_ASSERT(sums == Fp8Sums::fp32 || !blockwise(a), "fp8_matmul: blocks are summed in fp32");
  if (c.shape().size() == 0) return;
  exec.count_product(DType::e4m3, a.rows, b.rows, a.cols);
  if (a.cols == 0) {  // a sum of nothing: an expert without rows
    if (scale.beta != 0.0f) return;
    if (c.contiguous()) return exec.fill_zero(c);
    for (std::int64_t row = 0; row < a.rows; ++row) exec.fill_zero(c.slice_rows(row, row + 1));
    return;
  }
  const ScratchScope scope(exec.arena());
  if (!exec.on_cuda()) return cpu::fp8_matmul(exec, c, a, b, scale);

  const View workspace = exec.arena().scratch("matmul workspace", DType::u8, {cuda::matmul_workspace_bytes});
  // The library wants whole rows of 16 bytes throughout: what is not so is multiplied with its margin, and taken out.
  const std::int64_t rows = a.codes.dim(0), cols = b.codes.dim(0);
  View whole = c;
  const bool aligned = static_cast<std::size_t>(c.ld()) * size_of(c.dtype()) % 16 == 0;
  if (rows != a.rows || cols != b.rows || !aligned) {
    whole = exec.arena().scratch("product with its margin", c.dtype(), {rows, cols});
  }
  if (exec.planning()) return;
  const View inside = whole.slice_rows(0, a.rows).slice_cols(0, b.rows);
  const bool apart = whole.data() != c.data();
  if (apart && scale.beta != 0.0f) cuda::copy_rows(exec, inside, c);
  cuda::fp8_matmul(exec, workspace, whole, a, b, scale, sums);
  if (apart) cuda::copy_rows(exec, c, inside);
}

}  // namespace inlay::backend
