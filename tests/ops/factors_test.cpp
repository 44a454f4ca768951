#include "ops/factors.h"

#include <limits>

#include "op_cases.h"
#include "ops/adamw.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

class OpsFactors : public DeviceDType {
 protected:
  // A master as AdamW keeps it, holding fp32 values.
  Master master(TestBench& bench, Shape shape, const std::vector<double>& values) const {
    const View wide = bench.tensor(DType::f32, shape, values);
    if (dtype() == DType::f32) return {wide, {}};
    const View value = bench.poisoned(DType::bf16, shape), low = bench.poisoned(DType::i16, shape);
    split_master(bench.exec, value, low, wide);
    return {value, low};
  }
};

TEST_P(OpsFactors, AddOffsetSumsInFp32) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    TestBench bench(device());
    const auto base = rounded(random_values(rows * cols, 1), dtype());
    const auto offset = rounded(random_values(rows * cols, 2, 1e-3), DType::f32);
    const View out = bench.poisoned(dtype(), {rows, cols});
    add_offset(bench.exec, out, bench.tensor(dtype(), {rows, cols}, base), master(bench, {rows, cols}, offset));
    std::vector<double> expected;
    for (std::size_t i = 0; i < base.size(); ++i) {
      expected.push_back(static_cast<float>(base[i]) + static_cast<float>(offset[i]));
    }
    EXPECT_EQ(bench.read(out), rounded(expected, dtype()));
  }
}

TEST_P(OpsFactors, RowDot) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    TestBench bench(device());
    const auto a = rounded(random_values(rows * cols, 1), dtype()),
               b = rounded(random_values(rows * cols, 2), DType::f32);
    const View out = bench.poisoned(DType::f32, {rows});
    row_dot(bench.exec, out, bench.tensor(dtype(), {rows, cols}, a), bench.tensor(DType::f32, {rows, cols}, b));
    std::vector<double> dots(static_cast<std::size_t>(rows)), magnitude = dots;
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(cols);
      dots[row] += a[i] * b[i];
      magnitude[row] += std::fabs(a[i] * b[i]);
    }
    const auto actual = bench.read(out);
    for (std::size_t row = 0; row < dots.size(); ++row) EXPECT_NEAR(actual[row], dots[row], 1e-6 * magnitude[row]);
  }
}

TEST_P(OpsFactors, ChangeRowsIsWhatTheScaledRowsMovedBy) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    TestBench bench(device());
    const auto base = rounded(random_values(rows * cols, 1), dtype());
    const auto offset = rounded(random_values(rows * cols, 2, 1e-2), DType::f32);
    const auto scale = rounded(random_values(rows, 3), DType::f32),
               moved = rounded(random_values(rows, 4, 1e-2), DType::f32);
    const View scaled = bench.poisoned(dtype(), {rows, cols}), change = bench.poisoned(dtype(), {rows, cols});
    change_rows(bench.exec, scaled, change,
                {bench.tensor(dtype(), {rows, cols}, base), master(bench, {rows, cols}, offset),
                 bench.tensor(DType::f32, {rows}, scale), bench.tensor(DType::f32, {rows}, moved)});
    std::vector<double> expected_scaled, expected_change;
    for (std::size_t i = 0; i < base.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(cols);
      const double now = (scale[row] + moved[row]) * (base[i] + offset[i]);
      expected_scaled.push_back(now);
      expected_change.push_back(now - scale[row] * base[i]);
    }
    EXPECT_LT(relative_error(bench.read(scaled), expected_scaled), tolerance(dtype()));
    EXPECT_LT(relative_error(bench.read(change), expected_change), tolerance(dtype()));
  }
}

TEST_P(OpsFactors, UpdateInTwoHalvesIsTheWholeStep) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const DType moments : {DType::f32, DType::bf16}) {
      TestBench bench(device());
      const Shape shape{rows, cols};
      const std::int64_t size = rows * cols;
      const auto p = rounded(random_values(size, 1), DType::f32), g = random_values(size, 2);
      const auto m = random_values(size, 3), v = std::vector<double>(static_cast<std::size_t>(size), 0.3);
      const View scale = bench.tensor(DType::f32, {1}, {0.7});
      const AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .step = 3};
      const auto mutable_master = [&] {
        const Master made = master(bench, shape, p);
        const auto writable = [](ConstView view) {
          return view ? View(const_cast<void*>(view.data()), view.dtype(), view.shape()) : View();
        };
        return std::pair{writable(made.value), writable(made.low)};
      };
      const auto [whole, whole_low] = mutable_master();
      const auto [halves, halves_low] = mutable_master();
      const View m1 = bench.tensor(moments, shape, m), v1 = bench.tensor(moments, shape, v);
      const View m2 = bench.tensor(moments, shape, m), v2 = bench.tensor(moments, shape, v);
      const View grad = bench.tensor(DType::f32, shape, g);
      adamw_step(bench.exec, {whole, whole_low, m1, v1}, grad, scale, settings);
      adamw_update(bench.exec, grad, m2, v2, scale, settings);
      add_update(bench.exec, halves, halves_low, grad, settings);
      EXPECT_EQ(bench.read(m1), bench.read(m2));
      EXPECT_EQ(bench.read(v1), bench.read(v2));
      // The change is rounded by itself before it is added: a unit in its last place.
      EXPECT_LT(relative_error(bench.read(halves), bench.read(whole)), dtype() == DType::bf16 ? 1e-3 : 1e-7);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OpsFactors, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
