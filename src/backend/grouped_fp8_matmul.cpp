#include "backend/grouped_fp8_matmul.h"

#include <algorithm>

#include "backend/cpu/fp8_matmul.h"
#include "backend/cuda/context.h"
#include "backend/cuda/grouped_matmul.h"
#include "backend/grouped_matmul.h"

namespace inlay::backend {

namespace {

constexpr std::string_view op = "grouped_fp8_matmul";

void check_operands(const Fp8Matrix& a, const Fp8Matrix& b) {
  check_fp8_operand(a, op, "A");
  check_fp8_operand(b, op, "B");
  check_fp8_scaling(a, b, op);
  INLAY_ASSERT(b.codes.dtype() == DType::e4m3 && b.scaling != Fp8Scaling::vector && a.cols == b.cols,
               "grouped_fp8_matmul: A has {} columns, B {} in {}, expected e4m3 with a scale for each square", a.cols,
               b.cols, name_of(b.codes.dtype()));
}

void check_groups(const ConstView& offsets, std::size_t groups) {
  const auto count = static_cast<std::int64_t>(groups);
  INLAY_ASSERT(
      count >= 1 && count <= most_groups && offsets.dtype() == DType::i32 && offsets.shape() == Shape({count + 1}),
      "grouped_fp8_matmul: offsets of {} groups are {} {}", count, name_of(offsets.dtype()), offsets.shape().str());
}

// What is stored at once lies inside or outside of C as a whole.
void check_result(const View& c, std::int64_t rows, std::int64_t cols) {
  const auto size = static_cast<std::int64_t>(size_of(c.dtype()));
  INLAY_ASSERT(c.shape() == Shape({rows, cols}) && cols % 8 == 0 && c.ld() * size % 16 == 0 &&
                   reinterpret_cast<std::uintptr_t>(c.data()) % 16 == 0,
               "grouped_fp8_matmul: C is {} with rows {} apart, expected [{}, {}], eights of columns and whole sixteen "
               "bytes",
               c.shape().str(), c.ld(), rows, cols);
}

}  // namespace

bool grouped_fp8_possible(Device device) {
  if (device != Device::cuda || !cuda::available()) return true;
  constexpr int hopper = 90;
  return cuda::compute_capability() == hopper && cuda::grouped_fp8_built();
}

void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale, Fp8Sums sums) {
  check_groups(offsets, b.size());
  for (const Fp8Matrix& matrix : b) {
    check_operands(a, matrix);
    INLAY_ASSERT(matrix.rows == b[0].rows && matrix.scaling == b[0].scaling,
                 "grouped_fp8_matmul: matrices of groups that are not alike");
  }
  check_result(c, a.rows, b[0].rows);
  INLAY_ASSERT(c.dtype() == DType::bf16 || c.dtype() == DType::f32, "grouped_fp8_matmul: C is {}", name_of(c.dtype()));
  INLAY_ASSERT(scale.device_alpha == nullptr && (scale.beta == 0 || scale.beta == 1),
               "grouped_fp8_matmul: beta {}, expected 0 or 1 and no factor on the device", scale.beta);
  INLAY_ASSERT(sums == Fp8Sums::fp32 || a.scaling != Fp8Scaling::vector,
               "grouped_fp8_matmul: blocks are summed in fp32");
  exec.count_product(DType::e4m3, a.rows, b[0].rows, a.cols);
  if (c.shape().size() == 0) return;
  if (exec.on_cuda()) {
    INLAY_ASSERT(grouped_fp8_possible(Device::cuda), "grouped products in fp8: not on this GPU");
    if (!exec.planning()) cuda::grouped_fp8_matmul(exec, c, a, b, offsets, scale, sums);
    return;
  }
  const ScratchScope scope(exec.arena());
  cpu::grouped_fp8_matmul(exec, c, a, b, offsets, scale);
}

void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha) {
  if (mode == Grad::skip) return;
  check_groups(offsets, c.size());
  check_operands(a, b);
  for (const View& matrix : c) {
    if (matrix.absent()) continue;
    check_result(matrix, a.rows, b.rows);
    INLAY_ASSERT(matrix.dtype() == DType::f32, "grouped_fp8_matmul_over_rows: C is {}", name_of(matrix.dtype()));
  }
  // A plan does not know whose rows are whose: every matrix has as many.
  const auto wanted = std::ranges::count_if(c, [](const View& matrix) { return !matrix.absent(); });
  exec.count_product(DType::e4m3, a.rows, b.rows, a.cols * wanted / static_cast<std::int64_t>(c.size()));
  if (a.rows == 0 || b.rows == 0) return;
  if (a.cols == 0) {
    for (const View& matrix : c) {
      if (!matrix.absent() && mode == Grad::overwrite) exec.fill_zero(matrix);
    }
    return;
  }
  if (exec.on_cuda()) {
    INLAY_ASSERT(grouped_fp8_possible(Device::cuda), "grouped products in fp8: not on this GPU");
    if (!exec.planning()) cuda::grouped_fp8_matmul_over_rows(exec, c, mode, a, b, offsets, alpha);
    return;
  }
  const ScratchScope scope(exec.arena());
  cpu::grouped_fp8_matmul_over_rows(exec, c, mode, a, b, offsets, alpha);
}

}  // namespace inlay::backend
