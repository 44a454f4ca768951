#include "backend/matmul_f64.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/device_tensors.h"

// Products against plain sums in double. C lies in a larger frame that must stay as it was.
namespace inlay::testing {
namespace {

using backend::matmul_f64;
using backend::Transpose;

struct ExtentsF64 {
  std::int64_t m, n, k;
};

class BackendMatmulF64 : public ::testing::TestWithParam<Device> {
 protected:
  TestBench bench{GetParam()};
};

// X as stored, [rows, cols] of op(X), with three columns of NaN beside it.
View operand(TestBench& bench, std::int64_t rows, std::int64_t cols, bool transposed,
             const std::vector<double>& values) {
  constexpr std::int64_t gap = 3;
  const std::int64_t stored_rows = transposed ? cols : rows, stored_cols = transposed ? rows : cols;
  const std::int64_t ld = stored_cols + gap;
  std::vector<double> stored(static_cast<std::size_t>(stored_rows * ld), std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      stored[static_cast<std::size_t>(transposed ? j * ld + i : i * ld + j)] =
          values[static_cast<std::size_t>(i * cols + j)];
    }
  }
  return bench.tensor(DType::f64, {stored_rows, ld}, stored).slice_cols(0, stored_cols);
}

void check(TestBench& bench, const ExtentsF64& x, int bits, double alpha, double beta) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, transposes {}, alpha {}, beta {}", x.m, x.n, x.k, bits, alpha, beta));
  const auto mark = bench.exec.arena().mark();
  const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0;
  const auto a = random_values(x.m * x.k, 1), b = random_values(x.k * x.n, 2), old = random_values(x.m * x.n, 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const View c = operand(bench, x.m, x.n, false, beta == 0.0 ? std::vector<double>(old.size(), nan) : old);
  matmul_f64(bench.exec, c, operand(bench, x.m, x.k, ta, a), ta ? Transpose::yes : Transpose::no,
             operand(bench, x.k, x.n, tb, b), tb ? Transpose::yes : Transpose::no, alpha, beta);
  const auto actual = bench.read(c);
  for (std::int64_t i = 0; i < x.m; ++i) {
    for (std::int64_t j = 0; j < x.n; ++j) {
      const auto at = static_cast<std::size_t>(i * x.n + j);
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < x.k; ++k) {
        const double term = alpha * a[static_cast<std::size_t>(i * x.k + k)] * b[static_cast<std::size_t>(k * x.n + j)];
        sum += term, magnitude += std::abs(term);
      }
      if (beta != 0.0) sum += beta * old[at], magnitude += std::abs(beta * old[at]);
      // Any order of summation stays within terms·eps of the sum of magnitudes.
      ASSERT_NEAR(actual[at], sum, static_cast<double>(x.k + 2) * 0x1p-52 * magnitude) << i << ", " << j;
    }
  }
  const View frame(c.data(), DType::f64, {(x.m - 1) * c.ld() + x.n});
  const auto all = bench.read(frame);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](double value) { return !std::isnan(value); }), x.m * x.n);
  bench.exec.arena().release_to(mark);
}

TEST_P(BackendMatmulF64, MatchesPlainSums) {
  for (const ExtentsF64& x : {ExtentsF64{1, 1, 1}, {1, 7, 3}, {5, 1, 64}, {17, 31, 33}, {64, 48, 65}, {130, 70, 41}}) {
    for (int bits = 0; bits < 4; ++bits) {
      for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {-1.0, 1.0}, {-0.5, 1.5}}) {
        check(bench, x, bits, alpha, beta);
      }
    }
  }
}

TEST_P(BackendMatmulF64, AnEmptySumOnlyScalesC) {
  check(bench, {3, 4, 0}, 0, 1.0, 1.0);
  check(bench, {3, 4, 0}, 3, 1.0, 0.5);
  check(bench, {3, 4, 0}, 0, -1.0, 0.0);
}

TEST_P(BackendMatmulF64, RefusesWhatDoesNotFit) {
  const View c = bench.poisoned(DType::f64, {8, 16}), a = bench.poisoned(DType::f64, {8, 32}),
             b = bench.poisoned(DType::f64, {32, 16}), single = bench.poisoned(DType::f32, {8, 32});
  EXPECT_THROW(matmul_f64(bench.exec, c, a, Transpose::no, b, Transpose::yes), InternalError);
  EXPECT_THROW(matmul_f64(bench.exec, c, single, Transpose::no, b, Transpose::no), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, BackendMatmulF64, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
