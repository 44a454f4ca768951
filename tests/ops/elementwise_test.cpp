#include "ops/elementwise.h"

#include "op_cases.h"
#include "ops/reference/elementwise.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

// What one rounded sum of two stored numbers gives: fp32 arithmetic, then the dtype.
std::vector<double> rounded_sum(const std::vector<double>& a, const std::vector<double>& b, DType dtype) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = static_cast<float>(a[i]) + static_cast<float>(b[i]);
  return rounded(result, dtype);
}

class OpsElementwise : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed) const {
    return rounded(random_values(count, seed), dtype());
  }
};

TEST_P(OpsElementwise, AddBiasAddsToEveryRow) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto y = values(rows * cols, 1), bias = values(cols, 2);
    std::vector<double> repeated;
    for (std::int64_t row = 0; row < rows; ++row) repeated.insert(repeated.end(), bias.begin(), bias.end());
    const View dense = bench.tensor(dtype(), {rows, cols}, y), b = bench.tensor(dtype(), {cols}, bias);
    const Window wide = strided(bench, dtype(), rows, cols, y);
    add_bias(bench.exec, dense, b);
    add_bias(bench.exec, wide.view, b);
    auto exact = y;
    reference::add_bias<double>(exact, bias);
    EXPECT_LT(relative_error(bench.read(dense), exact), tolerance(dtype()));
    EXPECT_EQ(bench.read(dense), rounded_sum(y, repeated, dtype()));
    EXPECT_EQ(bench.read(wide.view), bench.read(dense));
    EXPECT_TRUE(surroundings_intact(bench, wide));
  }
}

TEST_P(OpsElementwise, BiasGradientIsTheColumnSum) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto dy = values(rows * cols, 3);
    const auto before = random_values(cols, 4);
    std::vector<double> expected(static_cast<std::size_t>(cols), 0.0);
    for (std::size_t i = 0; i < dy.size(); ++i) expected[i % expected.size()] += dy[i];
    const View fresh = bench.poisoned(DType::f32, {cols}), added = bench.tensor(DType::f32, {cols}, before);
    const View skipped = bench.tensor(DType::f32, {cols}, before);
    const Window wide = strided(bench, dtype(), rows, cols, dy);
    bias_backward(bench.exec, fresh, Grad::overwrite, bench.tensor(dtype(), {rows, cols}, dy));
    bias_backward(bench.exec, added, Grad::accumulate, wide.view);
    bias_backward(bench.exec, skipped, Grad::skip, wide.view);
    EXPECT_LT(relative_error(bench.read(fresh), expected), 2e-6);
    EXPECT_LT(relative_error(bench.read(added), sum_of(expected, before)), 2e-6);
    EXPECT_EQ(bench.read(skipped), rounded(before, DType::f32));
    bias_backward(bench.exec, added, Grad::overwrite, wide.view.slice_rows(0, 0));
    EXPECT_EQ(bench.read(added), std::vector<double>(static_cast<std::size_t>(cols), 0.0)) << "no rows";
  }
}

TEST_P(OpsElementwise, ScaleIsRoundedOnce) {
  constexpr float factor = 0.22f;
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = values(rows * cols, 5);
    std::vector<double> expected;
    for (const double value : x) expected.push_back(static_cast<float>(value) * factor);
    expected = rounded(expected, dtype());
    const View dense = bench.tensor(dtype(), {rows, cols}, x), out = bench.poisoned(dtype(), {rows, cols});
    const Window wide = strided(bench, dtype(), rows, cols), wide_x = strided(bench, dtype(), rows, cols, x);
    scale(bench.exec, out, dense, factor);
    EXPECT_EQ(bench.read(out), expected);
    EXPECT_EQ(bench.read(dense), x) << "x was written";
    scale(bench.exec, wide.view, wide_x.view, factor);
    EXPECT_EQ(bench.read(wide.view), expected);
    EXPECT_TRUE(surroundings_intact(bench, wide));
    scale(bench.exec, dense, dense, factor);
    EXPECT_EQ(bench.read(dense), expected) << "in place";
  }
}

TEST_P(OpsElementwise, SoftcapFollowsTanh) {
  if (dtype() != DType::f32) GTEST_SKIP() << "logits are fp32";
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = rounded(random_values(rows * cols, 6, 20.0), DType::f32);
    const View view = bench.tensor(DType::f32, {rows, cols}, x);
    softcap(bench.exec, view, 7.5f);
    std::vector<double> expected;
    for (const double value : x) expected.push_back(7.5 * std::tanh(value / 7.5));
    EXPECT_LT(relative_error(bench.read(view), expected), 1e-6);
  }
}

TEST_P(OpsElementwise, AddIsRoundedOnce) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto y = values(rows * cols, 5), x = values(rows * cols, 6);
    const View dense = bench.tensor(dtype(), {rows, cols}, y), flat = bench.tensor(dtype(), {rows * cols}, y);
    const Window wide = strided(bench, dtype(), rows, cols, y), wide_x = strided(bench, dtype(), rows, cols, x);
    add(bench.exec, dense, bench.tensor(dtype(), {rows, cols}, x));
    add(bench.exec, flat, bench.tensor(dtype(), {rows * cols}, x));
    add(bench.exec, wide.view, wide_x.view);
    EXPECT_EQ(bench.read(dense), rounded_sum(y, x, dtype()));
    EXPECT_EQ(bench.read(flat), rounded_sum(y, x, dtype()));
    EXPECT_EQ(bench.read(wide.view), rounded_sum(y, x, dtype()));
    EXPECT_TRUE(surroundings_intact(bench, wide));
  }
}

TEST_P(OpsElementwise, CastRoundsToNearestEven) {
  const DType from = dtype();
  for (const DType to : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& [rows, cols] : awkward_shapes()) {
      SCOPED_TRACE(fmt::format("to {}, {} x {}", name_of(to), rows, cols));
      TestBench bench(device());
      auto x = values(rows * cols, 7);
      // Halfway cases of bf16 and fp16, a subnormal of fp16, zeros of both signs, infinity.
      const double special[] = {1.00390625, 1.01171875, 1.00048828125, 1.00146484375, 3e-6, -0.0, 0.0, INFINITY};
      for (std::size_t i = 0; i < std::min<std::size_t>(x.size(), 8); ++i) x[i] = special[i];
      x = rounded(x, from);
      const View dense = bench.poisoned(to, {rows, cols});
      const Window wide = strided(bench, to, rows, cols), wide_x = strided(bench, from, rows, cols, x);
      cast(bench.exec, dense, bench.tensor(from, {rows, cols}, x));
      cast(bench.exec, wide.view, wide_x.view);
      EXPECT_EQ(bench.read(dense), rounded(x, to));
      EXPECT_EQ(bench.read(wide.view), rounded(x, to));
      EXPECT_TRUE(surroundings_intact(bench, wide));
      // And back: what was representable in the narrower type comes back as it was.
      const View back = bench.poisoned(from, {rows, cols});
      cast(bench.exec, back, dense);
      EXPECT_EQ(bench.read(back), rounded(rounded(x, to), from));
    }
  }
}

// Doubles that no narrower type holds; to 16 bits by way of fp32, as documented.
TEST_P(OpsElementwise, CastFromDouble) {
  for (const DType to : {dtype(), DType::f16, DType::f64}) {
    for (const auto& [rows, cols] : awkward_shapes()) {
      SCOPED_TRACE(fmt::format("to {}, {} x {}", name_of(to), rows, cols));
      TestBench bench(device());
      auto x = random_values(rows * cols, 7);
      for (double& value : x) value += value * 0x1p-40;
      const View dense = bench.poisoned(to, {rows, cols});
      const Window wide = strided(bench, to, rows, cols);
      cast(bench.exec, dense, bench.tensor(DType::f64, {rows, cols}, x));
      cast(bench.exec, wide.view, strided(bench, DType::f64, rows, cols, x).view);
      EXPECT_EQ(bench.read(dense), rounded(x, to));
      EXPECT_EQ(bench.read(wide.view), rounded(x, to));
      EXPECT_TRUE(surroundings_intact(bench, wide));
    }
  }
}

TEST(OpsElementwiseRows, ScaledRowsAreRoundedOnce) {
  for (const Device device : devices()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const auto& [rows, cols] : awkward_shapes()) {
        SCOPED_TRACE(fmt::format("{}, {} x {}", case_name(device, dtype), rows, cols));
        TestBench bench(device);
        const auto x = rounded(random_values(rows * cols, 9), DType::f32);
        const auto factors = rounded(random_values(rows, 10), DType::f32);
        auto expected = x;  // a product of two floats is exact in double
        for (std::size_t i = 0; i < x.size(); ++i) expected[i] *= factors[i / static_cast<std::size_t>(cols)];
        const Window wide = strided(bench, dtype, rows, cols, x);
        scale_rows(bench.exec, wide.view, bench.tensor(dtype, {rows}, factors));
        EXPECT_EQ(bench.read(wide.view), rounded(expected, dtype));
        EXPECT_TRUE(surroundings_intact(bench, wide));
      }
    }
  }
}

TEST_P(OpsElementwise, GatherAndScatterRows) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = values(rows * cols, 8);
    std::vector<std::int32_t> chosen;
    for (std::int32_t row = 0; row < rows; ++row) {
      if (row % 3 != 1) chosen.push_back(row);
    }
    const auto count = static_cast<std::int64_t>(chosen.size());
    std::vector<double> picked, scattered(x.size(), 0.0);
    for (const std::int32_t row : chosen) {
      const auto values_of_row = row_of(x, row, cols);
      picked.insert(picked.end(), values_of_row.begin(), values_of_row.end());
      std::copy(values_of_row.begin(), values_of_row.end(), scattered.begin() + row * cols);
    }
    const View index = bench.indices(chosen);
    const Window source = strided(bench, dtype(), rows, cols, x), target = strided(bench, dtype(), rows, cols);
    const View to = bench.poisoned(dtype(), {count, cols});
    gather_rows(bench.exec, to, source.view, index);
    EXPECT_EQ(bench.read(to), picked);
    scatter_rows(bench.exec, target.view, to, index);
    EXPECT_EQ(bench.read(target.view), scattered);
    EXPECT_TRUE(surroundings_intact(bench, target));
    // No rows at all: everything is cleared.
    scatter_rows(bench.exec, source.view, to.slice_rows(0, 0), index.slice(0, 0, 0));
    EXPECT_EQ(bench.read(source.view), std::vector<double>(x.size(), 0.0));
  }
}

TEST_P(OpsElementwise, RejectsMismatches) {
  TestBench bench(device());
  const View a = bench.poisoned(dtype(), {2, 3}), b = bench.poisoned(dtype(), {3, 2}), i = bench.indices({0, 1});
  EXPECT_THROW(add(bench.exec, a, b), InternalError);
  EXPECT_THROW(cast(bench.exec, a, b), InternalError);
  EXPECT_THROW(cast(bench.exec, i, i), InternalError);
  EXPECT_THROW(scale_rows(bench.exec, a, b), InternalError);
  EXPECT_THROW(add_bias(bench.exec, a, b), InternalError);
  EXPECT_THROW(gather_rows(bench.exec, b, a, i), InternalError);
  EXPECT_THROW(bias_backward(bench.exec, b, Grad::overwrite, a), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsElementwise, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
