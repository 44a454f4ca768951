#include "weights/basis.h"

#include "ops/op_cases.h"
#include "support/directions.h"
#include "weights/rank.h"
#include "weights/route.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::product;
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
      TestBench bench(device());
      DoubleMatrix h = orthonormal_rows(count, width, 3);
      Basis basis(bench.exec, "basis", dtype(), {count, width}, place);
      const View copy = bench.tensor(dtype(), {count, width}, h.data);
      std::vector<std::byte> host(copy.bytes());
      bench.exec.download(host.data(), copy);
      basis.set(bench.exec, host.data());
      h.data = rounded(h.data, dtype());
      const DoubleMatrix x = random_matrix(rows, width, 4);
      const DoubleMatrix inside = product(product(x, transposed(h)), h), outside = difference(x, inside);
      const View kept = bench.tensor(DType::f32, {rows, width}, x.data);
      const View removed = bench.tensor(DType::f32, {rows, width}, x.data);
      const Projection span(&basis, Projection::Onto::span), complement(&basis, Projection::Onto::complement);
      span.apply(bench.exec, kept);
      complement.apply(bench.exec, removed);
      const double bound = dtype() == DType::bf16 ? 8e-3 * norm(x) : 2e-6 * norm(x);  // rows and coefficients rounded
      EXPECT_LE(norm(difference({rows, width, bench.read(kept)}, inside)), bound);
      EXPECT_LE(norm(difference({rows, width, bench.read(removed)}, outside)), bound);
      // Leaks are found in fp32 whatever the basis's dtype.
      const View fresh = bench.tensor(DType::f32, {rows, width}, x.data);
      EXPECT_NEAR(complement.leak(bench.exec, fresh), largest(product(x, transposed(h))), 1e-5);
      EXPECT_NEAR(span.leak(bench.exec, fresh),
                  largest(difference(outside, product(product(outside, transposed(h)), h))), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, WeightsProjection, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::weights
