#include "ops/columns.h"

#include "op_cases.h"
#include "ops/reference/columns.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

class OpsColumns : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed) const {
    return rounded(random_values(count, seed), dtype());
  }
};

TEST_P(OpsColumns, DotsOfColumns) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const DType other : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} x {} with {}", rows, cols, name_of(other)));
      TestBench bench(device());
      const auto a = values(rows * cols, 1), b = rounded(random_values(rows * cols, 2), other);
      const auto before = rounded(random_values(cols, 3), DType::f32);
      std::vector<double> expected(static_cast<std::size_t>(cols));
      reference::column_dot<double>(expected, a, b);
      const View fresh = bench.poisoned(DType::f32, {cols}), again = bench.poisoned(DType::f32, {cols});
      const View added = bench.tensor(DType::f32, {cols}, before), skipped = bench.tensor(DType::f32, {cols}, before);
      const View left = bench.tensor(dtype(), {rows, cols}, a), right = bench.tensor(other, {rows, cols}, b);
      const Window wide_a = strided(bench, dtype(), rows, cols, a), wide_b = strided(bench, other, rows, cols, b, 5);
      column_dot(bench.exec, fresh, Grad::overwrite, left, right);
      column_dot(bench.exec, again, Grad::overwrite, left, right);
      column_dot(bench.exec, added, Grad::accumulate, wide_a.view, wide_b.view);
      column_dot(bench.exec, skipped, Grad::skip, left, right);
      EXPECT_LT(relative_error(bench.read(fresh), expected), 2e-6);
      EXPECT_EQ(bench.read(again), bench.read(fresh));
      EXPECT_LT(relative_error(bench.read(added), sum_of(expected, before)), 2e-6);
      EXPECT_EQ(bench.read(skipped), before);
      column_dot(bench.exec, added, Grad::overwrite, left.slice_rows(0, 0), right.slice_rows(0, 0));
      EXPECT_EQ(bench.read(added), std::vector<double>(static_cast<std::size_t>(cols), 0.0)) << "no rows";
    }
  }
}

TEST_P(OpsColumns, ScaledColumnsAreRoundedOnce) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = values(rows * cols, 4), factors = rounded(random_values(cols, 5), DType::f32);
    std::vector<double> exact(x.size());  // a product of two floats is exact in double
    reference::scale_columns<double>(exact, x, factors);
    const auto expected = rounded(rounded(exact, DType::f32), dtype());
    const View s = bench.tensor(DType::f32, {cols}, factors), in_place = bench.tensor(dtype(), {rows, cols}, x);
    const View apart = bench.poisoned(dtype(), {rows, cols});
    const Window wide = strided(bench, dtype(), rows, cols), wide_x = strided(bench, dtype(), rows, cols, x);
    scale_columns(bench.exec, apart, in_place, s);
    scale_columns(bench.exec, in_place, in_place, s);
    scale_columns(bench.exec, wide.view, wide_x.view, s);
    EXPECT_EQ(bench.read(apart), expected);
    EXPECT_EQ(bench.read(in_place), expected);
    EXPECT_EQ(bench.read(wide.view), expected);
    EXPECT_TRUE(surroundings_intact(bench, wide));
  }
}

TEST_P(OpsColumns, NormsOfRows) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    auto x = values(rows * cols, 6);
    std::fill(x.begin(), x.begin() + cols, rows > 1 ? 0.0 : 0.5);
    std::vector<double> expected(static_cast<std::size_t>(rows));
    reference::row_norms<double>(expected, x);
    const View dense = bench.poisoned(DType::f32, {rows}), wide = bench.poisoned(DType::f32, {rows});
    row_norms(bench.exec, dense, bench.tensor(dtype(), {rows, cols}, x));
    row_norms(bench.exec, wide, strided(bench, dtype(), rows, cols, x).view);
    EXPECT_LT(relative_error(bench.read(dense), expected), 2e-6);
    EXPECT_LT(relative_error(bench.read(wide), expected), 2e-6);
  }
}

TEST_P(OpsColumns, Quotients) {
  TestBench bench(device());
  const View a = bench.tensor(DType::f32, {5}, {1, -6, 0, 5, 7}), b = bench.tensor(DType::f32, {5}, {4, 2, 3, 0, -2});
  const View out = bench.poisoned(DType::f32, {5});
  quotients(bench.exec, out, a, b);
  EXPECT_EQ(bench.read(out), (std::vector<double>{0.25, -3, 0, 0, -3.5}));
  quotients(bench.exec, a, a, b);  // in place
  EXPECT_EQ(bench.read(a), bench.read(out));
}

TEST_P(OpsColumns, RejectsMismatches) {
  TestBench bench(device());
  const View a = bench.poisoned(dtype(), {2, 3}), b = bench.poisoned(dtype(), {3, 2});
  const View two = bench.poisoned(DType::f32, {2}), three = bench.poisoned(DType::f32, {3});
  EXPECT_THROW(column_dot(bench.exec, three, Grad::overwrite, a, b), InternalError);
  EXPECT_THROW(column_dot(bench.exec, two, Grad::overwrite, a, a), InternalError);
  EXPECT_THROW(scale_columns(bench.exec, a, a, two), InternalError);
  EXPECT_THROW(scale_columns(bench.exec, b, a, three), InternalError);
  EXPECT_THROW(row_norms(bench.exec, three, a), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsColumns, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
