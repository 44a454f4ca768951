#include "ops/dropout.h"

#include "op_cases.h"
#include "ops/reference/dropout.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

class OpsDropout : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed) const {
    return rounded(random_values(count, seed), dtype());
  }
};

std::vector<double> expected(const std::vector<double>& x, const Dropout& which, std::int64_t cols) {
  std::vector<double> result(x.size());
  reference::dropout<double>(result, x, which.p, Philox{which.seed}, which.site,
                             static_cast<std::uint64_t>(which.first_row * cols));
  return result;
}

TEST_P(OpsDropout, DropsWhatPhiloxSaysAndScalesTheRest) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const float p : {0.0f, 0.1f, 0.5f, 0.9375f}) {
      SCOPED_TRACE(fmt::format("{} x {}, p {}", rows, cols, p));
      TestBench bench(device());
      // Numbers beyond 2³², so that the counter's upper half matters.
      const Dropout which{
          .p = p, .seed = 0x123456789abcdefull, .site = 0x900000007ull, .first_row = (1ll << 34) / cols};
      const auto x = values(rows * cols, 1);
      const auto exact = expected(x, which, cols);
      const View dense = bench.poisoned(dtype(), {rows, cols}), in_place = bench.tensor(dtype(), {rows, cols}, x);
      const Window wide = strided(bench, dtype(), rows, cols), wide_x = strided(bench, dtype(), rows, cols, x);
      dropout(bench.exec, dense, Grad::overwrite, bench.tensor(dtype(), {rows, cols}, x), which);
      dropout(bench.exec, in_place, Grad::overwrite, in_place, which);
      dropout(bench.exec, wide.view, Grad::overwrite, wide_x.view, which);
      const auto got = bench.read(dense);
      EXPECT_LT(relative_error(got, exact), tolerance(dtype()));
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i] == 0, exact[i] == 0) << i;
      EXPECT_EQ(bench.read(in_place), got);
      EXPECT_EQ(bench.read(wide.view), got);
      EXPECT_TRUE(surroundings_intact(bench, wide));
      if (p == 0) {
        EXPECT_EQ(got, x);
      }
    }
  }
}

TEST_P(OpsDropout, TilesOfRowsGiveTheMaskOfTheWhole) {
  for (const std::int64_t cols : {37, 64, 1000}) {
    TestBench bench(device());
    constexpr std::int64_t rows = 29;
    const Dropout which{.p = 0.3f, .seed = 5, .site = 11, .first_row = 100};
    const View x = bench.tensor(dtype(), {rows, cols}, values(rows * cols, 2));
    const View whole = bench.poisoned(dtype(), {rows, cols}), tiles = bench.poisoned(dtype(), {rows, cols});
    dropout(bench.exec, whole, Grad::overwrite, x, which);
    for (std::int64_t row = 0, step = 1; row < rows; row += step, ++step) {
      const std::int64_t end = std::min(rows, row + step);
      Dropout part = which;
      part.first_row += row;
      dropout(bench.exec, tiles.slice_rows(row, end), Grad::overwrite, x.slice_rows(row, end), part);
    }
    EXPECT_EQ(bench.read(tiles), bench.read(whole));
  }
}

TEST_P(OpsDropout, SortedRowsKeepTheMasksOfTheirNumbers) {
  for (const std::int64_t cols : {37, 64, 1000}) {
    SCOPED_TRACE(cols);
    TestBench bench(device());
    const std::vector<std::int32_t> numbers = {4, 0, 28, 7, 7, 2};
    const auto count = static_cast<std::int64_t>(numbers.size());
    const Dropout all{.p = 0.3f, .seed = 5, .site = 11, .first_row = 100};
    Dropout which = all;
    which.rows = bench.indices(numbers);
    const auto x = values(count * cols, 2), before = values(count * cols, 3);
    std::vector<double> exact;
    for (std::int64_t i = 0; i < count; ++i) {
      Dropout one = all;
      one.first_row += numbers[static_cast<std::size_t>(i)];
      const auto row = expected({x.begin() + i * cols, x.begin() + (i + 1) * cols}, one, cols);
      exact.insert(exact.end(), row.begin(), row.end());
    }
    const View y = bench.poisoned(dtype(), {count, cols}), sum = bench.tensor(dtype(), {count, cols}, before);
    dropout(bench.exec, y, Grad::overwrite, bench.tensor(dtype(), {count, cols}, x), which);
    dropout(bench.exec, sum, Grad::accumulate, bench.tensor(dtype(), {count, cols}, x), which);
    const auto got = bench.read(y);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i] == 0, exact[i] == 0) << i;
    EXPECT_LT(relative_error(got, exact), tolerance(dtype()));
    EXPECT_LT(relative_error(bench.read(sum), sum_of(exact, before)), tolerance(dtype()));
  }
}

// y = D x with a diagonal D, so dx = D dy.
TEST_P(OpsDropout, GradientIsTheSameMask) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const Dropout which{.p = 0.25f, .seed = 3, .site = 1, .first_row = 7};
    const auto dy = values(rows * cols, 3), before = values(rows * cols, 4);
    const Window dx = strided(bench, dtype(), rows, cols, before);
    dropout(bench.exec, dx.view, Grad::accumulate, bench.tensor(dtype(), {rows, cols}, dy), which);
    EXPECT_LT(relative_error(bench.read(dx.view), sum_of(expected(dy, which, cols), before)), tolerance(dtype()));
    EXPECT_TRUE(surroundings_intact(bench, dx));
    const auto after = bench.read(dx.view);
    dropout(bench.exec, dx.view, Grad::skip, dx.view, which);
    EXPECT_EQ(bench.read(dx.view), after);
  }
}

TEST_P(OpsDropout, DropsItsShareAndSitesDiffer) {
  TestBench bench(device());
  constexpr std::int64_t rows = 512, cols = 1024, count = rows * cols;
  const View ones = bench.tensor(dtype(), {rows, cols}, std::vector<double>(count, 1.0));
  const auto dropped = [&](const Dropout& which) {
    const View y = bench.poisoned(dtype(), {rows, cols});
    dropout(bench.exec, y, Grad::overwrite, ones, which);
    std::vector<bool> result;
    for (const double value : bench.read(y)) result.push_back(value == 0);
    return result;
  };
  const auto a = dropped({.p = 0.1f, .seed = 1, .site = 1});
  for (const Dropout& other : {Dropout{.p = 0.1f, .seed = 1, .site = 2}, Dropout{.p = 0.1f, .seed = 2, .site = 1},
                               Dropout{.p = 0.1f, .seed = 1, .site = 1, .first_row = rows}}) {
    const auto b = dropped(other);
    double share = 0, both = 0;
    for (std::size_t i = 0; i < a.size(); ++i) share += b[i], both += a[i] && b[i];
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(share, 0.1 * count, 5 * std::sqrt(0.1 * 0.9 * count));
    EXPECT_NEAR(both, 0.01 * count, 5 * std::sqrt(0.01 * 0.99 * count));
  }
}

TEST_P(OpsDropout, WhatIsDroppedIsGoneWhateverItWas) {
  TestBench bench(device());
  const View x = bench.poisoned(dtype(), {1, 4096}), y = bench.poisoned(dtype(), {1, 4096});
  dropout(bench.exec, y, Grad::overwrite, x, {.p = 0.5f});
  std::int64_t zeros = 0;
  for (const double value : bench.read(y)) zeros += value == 0;
  EXPECT_NEAR(static_cast<double>(zeros), 2048, 5 * 32);
}

TEST_P(OpsDropout, RejectsMismatches) {
  TestBench bench(device());
  const View a = bench.poisoned(dtype(), {2, 3}), b = bench.poisoned(dtype(), {3, 2});
  EXPECT_THROW(dropout(bench.exec, a, Grad::overwrite, b, {.p = 0.5f}), InternalError);
  EXPECT_THROW(dropout(bench.exec, a, Grad::overwrite, a, {.p = 1.0f}), InternalError);
  EXPECT_THROW(dropout(bench.exec, a, Grad::overwrite, a, {.p = -0.1f}), InternalError);
  EXPECT_THROW(dropout(bench.exec, a, Grad::overwrite, a, {.p = 0.5f, .rows = bench.indices({0, 1, 2})}),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsDropout, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
