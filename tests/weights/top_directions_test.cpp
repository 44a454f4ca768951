#include "weights/top_directions.h"

#include "ops/op_cases.h"
#include "support/directions.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::product;
using ops::reference::transposed;

class WeightsTopDirections : public ::testing::TestWithParam<Device> {};

// Matrices of known singular values: wide and tall, odd extents, one so small that no direction is spare, and one of
// which most directions are left out.
TEST_P(WeightsTopDirections, AreThoseThatTheMatrixWasMadeOf) {
  struct Case {
    std::int64_t out, in, rank;
    double decay;
  };
  for (const Case& c : {Case{61, 90, 4, 0.8}, Case{90, 37, 7, 0.9}, Case{5, 11, 5, 0.5}, Case{64, 64, 1, 0.7},
                        Case{150, 131, 40, 0.97}}) {
    SCOPED_TRACE(fmt::format("{} x {}, rank {}", c.out, c.in, c.rank));
    const std::int64_t full = std::min(c.out, c.in);
    const DoubleMatrix u = orthonormal_rows(full, c.out, 1), v = orthonormal_rows(full, c.in, 2);
    DoubleMatrix scaled = v;
    std::vector<double> sigma;
    for (std::int64_t i = 0; i < full; ++i) {
      sigma.push_back(3 * std::pow(c.decay, static_cast<double>(i)));
      for (std::int64_t j = 0; j < c.in; ++j) scaled(i, j) *= sigma.back();
    }
    const DoubleMatrix w = product(transposed(u), scaled);
    TestBench bench(GetParam());
    const View matrix = bench.tensor(DType::f32, {c.out, c.in}, w.data);
    const backend::ScratchScope scope(bench.exec.arena());
    const TopDirections top = top_directions(bench.exec, matrix, c.rank);
    const DoubleMatrix left{c.rank, c.out, bench.read(top.u)}, right{c.rank, c.in, bench.read(top.v)};
    for (std::int64_t i = 0; i < c.rank; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(top.s[at], sigma[at], 1e-5 * sigma[0]);
      // Up to one sign for both sides.
      double along_u = 0, along_v = 0;
      for (std::int64_t j = 0; j < c.out; ++j) along_u += left(i, j) * u(i, j);
      for (std::int64_t j = 0; j < c.in; ++j) along_v += right(i, j) * v(i, j);
      EXPECT_NEAR(along_u * along_v, 1.0, 1e-4) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, WeightsTopDirections, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::weights
