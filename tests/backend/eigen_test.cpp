#include "backend/eigen.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/device_tensors.h"

// A·v = λ·v for orthonormal v, as many as A has rows, is all there is to say about a symmetric matrix: no reference is
// needed beyond the products, which are taken in double.
namespace inlay::testing {
namespace {

class BackendEigen : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  BackendEigen() : bench(std::get<0>(GetParam())), dtype(std::get<1>(GetParam())) {}

  // Both triangles are filled in; which of them is read is the library's business.
  std::vector<double> symmetric(std::int64_t n, std::uint64_t seed) const {
    std::vector<double> a = random_values(n * n, seed);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < i; ++j) a[at(i, j, n)] = a[at(j, i, n)];
    }
    return rounded(a, dtype);
  }
  static std::size_t at(std::int64_t i, std::int64_t j, std::int64_t n) { return static_cast<std::size_t>(i * n + j); }

  void check(const std::vector<double>& a, std::int64_t n, const std::vector<double>& values,
             const std::vector<double>& vectors) const {
    double norm = 0;
    for (const double value : a) norm += value * value;
    const double eps = dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : 0x1p-23;
    // The textbook bound of a backward stable solver, p(n)·eps·‖A‖ with p(n) = 4·n.
    const double tolerance = 4 * static_cast<double>(n) * eps, scaled = tolerance * std::sqrt(norm);
    for (std::int64_t i = 0; i < n; ++i) {
      if (i > 0) {
        EXPECT_LE(values[static_cast<std::size_t>(i - 1)], values[static_cast<std::size_t>(i)]) << "order at " << i;
      }
      for (std::int64_t j = 0; j < n; ++j) {
        double dot = 0, product = 0;
        for (std::int64_t k = 0; k < n; ++k) {
          dot += vectors[at(i, k, n)] * vectors[at(j, k, n)];
          product += a[at(j, k, n)] * vectors[at(i, k, n)];
        }
        ASSERT_NEAR(dot, i == j ? 1.0 : 0.0, tolerance) << "vectors " << i << " and " << j;
        ASSERT_NEAR(product, values[static_cast<std::size_t>(i)] * vectors[at(i, j, n)], scaled) << "vector " << i;
      }
    }
  }

  void check(const std::vector<double>& a, std::int64_t n) {
    const auto mark = bench.exec.arena().mark();
    const View matrix = bench.tensor(dtype, {n, n}, a), values = bench.poisoned(dtype, {n});
    backend::symmetric_eigen(bench.exec, values, matrix);
    check(a, n, bench.read(values), bench.read(matrix));
    bench.exec.arena().release_to(mark);
  }

  TestBench bench;
  DType dtype;
};

TEST_P(BackendEigen, SolvesRandomMatrices) {
  for (const std::int64_t n : {1, 2, 3, 17, 32, 64, 129, 200}) {
    SCOPED_TRACE(n);
    check(symmetric(n, 1), n);
  }
}

TEST_P(BackendEigen, SolvesDegenerateMatrices) {
  for (const std::int64_t n : {1, 5, 40}) {
    SCOPED_TRACE(n);
    std::vector<double> zero(static_cast<std::size_t>(n * n), 0.0), identity = zero, ones = zero, graded = zero;
    for (std::int64_t i = 0; i < n; ++i) {
      identity[at(i, i, n)] = 1;
      for (std::int64_t j = 0; j < n; ++j) {
        ones[at(i, j, n)] = 1;  // rank one, and n − 1 times the same eigenvalue
        graded[at(i, j, n)] = std::pow(0.5, static_cast<double>(i + j));
      }
    }
    for (const auto& matrix : {zero, identity, ones, rounded(graded, dtype)}) check(matrix, n);
  }
}

TEST_P(BackendEigen, LeavesTheFrameOfAStridedMatrixAlone) {
  constexpr std::int64_t n = 23, gap = 5;
  const std::vector<double> a = symmetric(n, 2);
  std::vector<double> framed(static_cast<std::size_t>(n * (n + gap)), 777.0);
  for (std::int64_t i = 0; i < n; ++i) std::copy_n(a.begin() + i * n, n, framed.begin() + i * (n + gap));
  const View whole = bench.tensor(dtype, {n, n + gap}, framed), values = bench.poisoned(dtype, {n});
  const View matrix = whole.slice_cols(0, n);
  backend::symmetric_eigen(bench.exec, values, matrix);
  check(a, n, bench.read(values), bench.read(matrix));
  EXPECT_EQ(bench.read(whole.slice_cols(n, n + gap)), std::vector<double>(n * gap, 777.0));
}

TEST_P(BackendEigen, PlansWhatItTakes) {
  constexpr std::int64_t n = 100;
  backend::Exec plan = backend::Exec::planner(bench.exec.device());
  const auto keep = [&](Shape shape) { return plan.arena().keep(MemoryClass::weights, "operand", dtype, shape); };
  backend::symmetric_eigen(plan, keep({n}), keep({n, n}));
  const auto mark = bench.exec.arena().mark();
  EXPECT_EQ(mark, 0u);
  const View values = bench.poisoned(dtype, {n}), matrix = bench.tensor(dtype, {n, n}, symmetric(n, 3));
  backend::symmetric_eigen(bench.exec, values, matrix);
  EXPECT_EQ(plan.arena().peak(), bench.exec.arena().peak());
}

TEST_P(BackendEigen, RefusesWhatDoesNotFit) {
  const View values = bench.poisoned(dtype, {3}), matrix = bench.poisoned(dtype, {3, 4});
  EXPECT_THROW(backend::symmetric_eigen(bench.exec, values, matrix), InternalError);
  EXPECT_THROW(backend::symmetric_eigen(bench.exec, bench.poisoned(dtype, {2}), bench.poisoned(dtype, {3, 3})),
               InternalError);
  EXPECT_THROW(
      backend::symmetric_eigen(bench.exec, bench.poisoned(DType::bf16, {3}), bench.poisoned(DType::bf16, {3, 3})),
      InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, BackendEigen,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f64, DType::f32)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
