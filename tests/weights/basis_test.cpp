#include "weights/basis.h"

#include "ops/op_cases.h"
#include "support/directions.h"
#include "weights/rank.h"
#include "weights/route.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::transposed;

TEST(WeightsRank, RoundsUpToAlignedRanks) {
  EXPECT_EQ(trainable_rank(0.9, 1000), 960);  // round(900), up to a multiple of 64
  EXPECT_EQ(trainable_rank(0.1, 4096), 448);  // 410 would be unaligned
  EXPECT_EQ(trainable_rank(0.5, 4096), 2048);
  EXPECT_EQ(trainable_rank(0.5, 288), 144);  // multiples of 16 below 512
  EXPECT_EQ(trainable_rank(0.3, 100), 32);   // of 8 below 128
  EXPECT_EQ(trainable_rank(0.5, 41), 21);    // of 1 below 64
  EXPECT_EQ(trainable_rank(1e-9, 41), 1);
  EXPECT_EQ(trainable_rank(1e-9, 4096), 64);
  for (const std::int64_t full : {1, 7, 63, 64, 100, 511, 512, 1000, 14336}) {
    EXPECT_EQ(trainable_rank(1.0, full), full);
    EXPECT_LE(trainable_rank(0.999, full), full);
  }
}

TEST(WeightsRoute, TheCheapestIsTheOneWithTheFewestOperations) {
  const auto best = [](std::int64_t out, std::int64_t in, std::int64_t rank, std::int64_t tokens) {
    return cheapest_route({.out = out, .in = in, .rank = rank, .tokens = tokens});
  };
  EXPECT_EQ(best(4096, 4096, 448, 16384), Route::direct);
  EXPECT_EQ(best(4096, 4096, 2048, 16384), Route::dense);
  EXPECT_EQ(best(4096, 4096, 2048, 64), Route::factored);
  // The design's break-even of a square weight with many tokens: a quarter of the directions.
  EXPECT_EQ(best(4096, 4096, 960, 1 << 20), Route::direct);
  EXPECT_EQ(best(4096, 4096, 1088, 1 << 20), Route::dense);
  for (const Route route : {Route::direct, Route::dense, Route::factored}) {
    EXPECT_EQ(parse_route(name_of(route)), route);
  }
  EXPECT_EQ(parse_route("auto"), std::nullopt);
}

class WeightsProjection : public DeviceDType {};

TEST_P(WeightsProjection, RemovesOrKeepsASpan) {
  for (const auto place : {BasisPlace::device, BasisPlace::host}) {
    for (const auto& [rows, width, count] : {std::tuple{5, 24, 7}, std::tuple{1, 9, 1}, std::tuple{40, 33, 32}}) {
      TestBench bench(device(), std::size_t{64} << 20, bases_on_host);
      const DoubleMatrix h = orthonormal_rows(count, width, 3);
      Basis basis(bench.exec, "basis", dtype(), {count, width}, place);
      basis.set(bench.exec, floats(h).data());
      const DoubleMatrix x = random_matrix(rows, width, 4);
      const Projection span(&basis, Projection::Onto::span), complement(&basis, Projection::Onto::complement);
      const auto made = [&](const auto& project) {
        const View view = bench.tensor(DType::f32, {rows, width}, x.data);
        project(view);
        return DoubleMatrix{rows, width, bench.read(view)};
      };
      // In a step the basis, the rows and the coefficients are rounded.
      DoubleMatrix rounded_h = h;
      rounded_h.data = rounded(h.data, dtype());
      const DoubleMatrix inside = along(x, rounded_h);
      const double bound = dtype() == DType::bf16 ? 8e-3 * norm(x) : 2e-6 * norm(x);
      const auto step = [&](const Projection& p) {
        return made([&](View view) { p.apply(bench.exec, view, Projected::gradient); });
      };
      EXPECT_LE(norm(difference(step(span), inside)), bound);
      EXPECT_LE(norm(difference(step(complement), difference(x, inside))), bound);
      // And exactly, in any dtype.
      const DoubleMatrix exactly = along(x, h);
      const auto exact = [&](const Projection& p) {
        return made([&](View view) { p.apply_exactly(bench.exec, view); });
      };
      EXPECT_LE(norm(difference(exact(span), exactly)), 1e-6 * norm(x));
      EXPECT_LE(norm(difference(exact(complement), difference(x, exactly))), 1e-6 * norm(x));
    }
  }
}

TEST_P(WeightsProjection, MeasuresWhatLiesOutside) {
  const std::int64_t rows = 17, width = 24, count = 7;
  TestBench bench(device(), std::size_t{64} << 20, bases_on_host);
  const DoubleMatrix h = orthonormal_rows(count, width, 3), x = random_matrix(rows, width, 4);
  Basis basis(bench.exec, "basis", dtype(), {count, width}, BasisPlace::device);
  basis.set(bench.exec, floats(h).data());
  const Basis nothing(bench.exec, "nothing", dtype(), {0, width}, BasisPlace::device);
  const View upright = bench.tensor(DType::f32, {rows, width}, x.data),
             turned = bench.tensor(DType::f32, {width, rows}, transposed(x).data),
             sums = bench.poisoned(DType::f64, {5});
  const Projection span(&basis, Projection::Onto::span), complement(&basis, Projection::Onto::complement);
  span.square_outside(bench.exec, sums, 0, upright);
  span.square_outside(bench.exec, sums, 1, turned, Projection::Along::columns);
  complement.square_outside(bench.exec, sums, 2, upright);
  complement.square_outside(bench.exec, sums, 3, turned, Projection::Along::columns);
  Projection(&nothing, Projection::Onto::complement).square_outside(bench.exec, sums, 4, upright);
  const double inside = norm(along(x, h)), outside = norm(difference(x, along(x, h)));
  const std::vector<double> found = bench.read(sums);
  for (const std::size_t slot : {0, 1}) EXPECT_NEAR(std::sqrt(found[slot]), outside, 1e-6 * outside);
  for (const std::size_t slot : {2, 3}) EXPECT_NEAR(std::sqrt(found[slot]), inside, 1e-6 * inside);
  EXPECT_EQ(found[4], 0.0);
}

INSTANTIATE_TEST_SUITE_P(, WeightsProjection, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::weights
