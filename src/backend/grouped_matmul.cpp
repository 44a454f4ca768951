#include "backend/grouped_matmul.h"

#include <algorithm>

#include "backend/cpu/matmul.h"
#include "backend/cuda/grouped_matmul.h"

namespace inlay::backend {

namespace {

void check_operands(const ConstView& x, const ConstView& y, const ConstView& offsets, std::size_t groups) {
  INLAY_ASSERT(x.rank() == 2 && y.rank() == 2 && x.dim(0) == y.dim(0), "grouped_matmul: rows of {} and of {}",
               x.shape().str(), y.shape().str());
  INLAY_ASSERT(x.dtype() == y.dtype() && (x.dtype() == DType::f32 || x.dtype() == DType::bf16),
               "grouped_matmul: rows in {} and {}, expected fp32 or bf16", name_of(x.dtype()), name_of(y.dtype()));
  const auto count = static_cast<std::int64_t>(groups);
  INLAY_ASSERT(count >= 1 && count <= most_groups, "grouped_matmul: {} groups, expected 1 to {}", count, most_groups);
  INLAY_ASSERT(offsets.dtype() == DType::i32 && offsets.shape() == Shape({count + 1}),
               "grouped_matmul: offsets of {} groups are {} {}", count, name_of(offsets.dtype()),
               offsets.shape().str());
}

// The host may read the offsets: the rows of each group, as they are.
template <class Body>
void for_each_group(const ConstView& offsets, const Body& body) {
  const auto* at = offsets.as<std::int32_t>();
  for (std::int64_t g = 0; g + 1 < offsets.dim(0); ++g) body(static_cast<std::size_t>(g), at[g], at[g + 1]);
}

// The host multiplies group by group. Whose rows are whose is not known beforehand, so the workspace is that of one
// group which has all of them.
View take_workspace(Exec& exec, DType operands, std::int64_t m, std::int64_t n, std::int64_t k) {
  return exec.arena().scratch("matmul workspace", DType::u8, {cpu::matmul_workspace_bytes(operands, m, n, k)});
}

}  // namespace

void grouped_matmul(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale) {
  check_operands(a, c, offsets, b.size());
  INLAY_ASSERT(scale.device_alpha == nullptr && (scale.beta == 0 || scale.beta == 1),
               "grouped_matmul: beta {}, expected 0 or 1 and no factor on the device", scale.beta);
  const bool tb = transpose_b == Transpose::yes;
  for (const ConstView& matrix : b) {
    INLAY_ASSERT(matrix.rank() == 2 && matrix.dim(tb ? 1 : 0) == a.dim(1) && matrix.dim(tb ? 0 : 1) == c.dim(1) &&
                     matrix.dtype() == a.dtype(),
                 "grouped_matmul: C {} is not A {} times B {}{} in {}", c.shape().str(), a.shape().str(),
                 matrix.shape().str(), tb ? "ᵀ" : "", name_of(matrix.dtype()));
  }
  exec.count_product(a.dtype(), a.dim(0), c.dim(1), a.dim(1));
  if (c.shape().size() == 0) return;
  if (exec.on_cuda()) {
    if (!exec.planning()) cuda::grouped_matmul(exec, c, a, b, transpose_b, offsets, scale);
    return;
  }
  const ScratchScope scope(exec.arena());
  const View workspace = take_workspace(exec, a.dtype(), a.dim(0), c.dim(1), a.dim(1));
  if (exec.planning()) return;
  for_each_group(offsets, [&](std::size_t g, std::int64_t begin, std::int64_t end) {
    cpu::matmul(workspace, c.slice_rows(begin, end), a.slice_rows(begin, end), Transpose::no, b[g], transpose_b, scale);
  });
}

void grouped_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha) {
  if (mode == Grad::skip) return;
  check_operands(a, b, offsets, c.size());
  for (const View& matrix : c) {
    if (matrix.absent()) continue;
    INLAY_ASSERT(matrix.shape() == Shape({a.dim(1), b.dim(1)}) && matrix.dtype() == DType::f32,
                 "grouped_matmul_over_rows: C is {} {}, expected fp32 [{}, {}]", name_of(matrix.dtype()),
                 matrix.shape().str(), a.dim(1), b.dim(1));
  }
  // A plan does not know whose rows are whose: every matrix has as many.
  const auto wanted = std::ranges::count_if(c, [](const View& matrix) { return !matrix.absent(); });
  exec.count_product(a.dtype(), a.dim(1), b.dim(1), a.dim(0) * wanted / static_cast<std::int64_t>(c.size()));
  if (a.dim(1) == 0 || b.dim(1) == 0) return;
  if (exec.on_cuda()) {
    if (!exec.planning()) cuda::grouped_matmul_over_rows(exec, c, mode, a, b, offsets, alpha);
    return;
  }
  const ScratchScope scope(exec.arena());
  const View workspace = take_workspace(exec, a.dtype(), a.dim(1), b.dim(1), a.dim(0));
  if (exec.planning()) return;
  for_each_group(offsets, [&](std::size_t g, std::int64_t begin, std::int64_t end) {
    if (c[g].absent()) return;
    cpu::matmul(workspace, c[g], a.slice_rows(begin, end), Transpose::yes, b.slice_rows(begin, end), Transpose::no,
                {.alpha = alpha, .beta = mode == Grad::accumulate ? 1.0f : 0.0f});
  });
}

}  // namespace inlay::backend
