#include "weights/principal.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/device_tensors.h"
#include "support/jacobi_svd.h"

namespace inlay::testing {
namespace {

using weights::principal_of_covariance;
using weights::principal_of_inputs;
using weights::PrincipalDirections;

using Matrix = std::vector<double>;

std::size_t at(std::int64_t row, std::int64_t col, std::int64_t cols) {
  return static_cast<std::size_t>(row * cols + col);
}

// Inputs [n, width] of which channel j has the given size, mixed a little so that no axis is a principal one.
Matrix inputs(std::int64_t n, std::int64_t width, double decades, std::uint64_t seed) {
  Matrix x = random_values(n * width, seed);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      x[at(i, j, width)] *= std::pow(10.0, -decades * static_cast<double>(j) / static_cast<double>(width));
      if (j > 0) x[at(i, j, width)] += 0.3 * x[at(i, j - 1, width)];
    }
  }
  return x;
}

// Xᵀ·X
Matrix covariance(const Matrix& x, std::int64_t n, std::int64_t width) {
  Matrix c(static_cast<std::size_t>(width * width), 0.0);
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      for (std::int64_t j = 0; j < width; ++j) c[at(i, j, width)] += x[at(t, i, width)] * x[at(t, j, width)];
    }
  }
  return c;
}

class WeightsPrincipal : public ::testing::TestWithParam<Device> {
 protected:
  PrincipalDirections room(std::int64_t count, std::int64_t width) {
    return {bench.poisoned(DType::f32, {count}), bench.poisoned(DType::f32, {count, width})};
  }

  // The first `kept` rows are orthonormal, energies descend, and C·v = energy · v to fp32 rounding of the largest.
  void check(const PrincipalDirections& out, std::int64_t kept, const Matrix& c) {
    const std::int64_t width = out.directions.dim(1);
    const Matrix energies = bench.read(out.energies), v = bench.read(out.directions);
    for (std::int64_t i = 0; i < kept; ++i) {
      const double energy = energies[static_cast<std::size_t>(i)];
      EXPECT_GE(energy, 0.0);
      if (i > 0) {
        EXPECT_LE(energy, energies[static_cast<std::size_t>(i - 1)]) << "order at " << i;
      }
      for (std::int64_t j = 0; j < kept; ++j) {
        double dot = 0;
        for (std::int64_t k = 0; k < width; ++k) dot += v[at(i, k, width)] * v[at(j, k, width)];
        ASSERT_NEAR(dot, i == j ? 1.0 : 0.0, 5e-7) << "directions " << i << " and " << j;
      }
      for (std::int64_t j = 0; j < width; ++j) {
        double product = 0;
        for (std::int64_t k = 0; k < width; ++k) product += c[at(j, k, width)] * v[at(i, k, width)];
        ASSERT_NEAR(product, energy * v[at(i, j, width)], 3e-7 * energies[0]) << "direction " << i;
      }
    }
  }

  TestBench bench{GetParam()};
};

TEST_P(WeightsPrincipal, SolvesACovariance) {
  for (const std::int64_t width : {1, 2, 17, 64, 100}) {
    for (const std::int64_t n : {width / 2, 3 * width}) {  // half of the directions carry nothing, and all carry some
      SCOPED_TRACE(fmt::format("{} inputs of {}", n, width));
      const Matrix c = rounded(covariance(inputs(n, width, 2, 1), n, width), DType::f32);
      const PrincipalDirections out = room(width, width);
      principal_of_covariance(bench.exec, out, bench.tensor(DType::f32, {width, width}, c));
      check(out, width, c);
    }
  }
}

TEST_P(WeightsPrincipal, FindsTheSameDirectionsFromFewInputs) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [n, width] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 40}, {7, 40}, {33, 90}, {64, 64}}) {
      for (const double decades : {0.0, 3.0, 8.0}) {
        SCOPED_TRACE(fmt::format("{} inputs of {} {} over {} decades", n, width, name_of(dtype), decades));
        const Matrix x = rounded(inputs(n, width, decades, 2), dtype);
        const PrincipalDirections out = room(n, width);
        const std::int64_t kept = principal_of_inputs(bench.exec, out, bench.tensor(dtype, {n, width}, x));
        EXPECT_EQ(kept, n);
        check(out, kept, covariance(x, n, width));
        const Matrix sigma = jacobi_singular_values(x, n, width), energies = bench.read(out.energies);
        for (std::size_t i = 0; i < sigma.size(); ++i) {
          const double energy = sigma[i] * sigma[i];
          EXPECT_NEAR(energies[i], energy, 3e-7 * energy + 1e-26 * sigma[0] * sigma[0]) << "energy " << i;
        }
      }
    }
  }
}

// One input a million times larger than the others, as models do make them, must not drown those.
TEST_P(WeightsPrincipal, AnOutlierHidesNoDirection) {
  constexpr std::int64_t n = 20, width = 50;
  Matrix x = random_values(n * width, 3);
  x[at(4, 30, width)] = 1e6;
  x = rounded(x, DType::f32);
  const PrincipalDirections out = room(n, width);
  ASSERT_EQ(principal_of_inputs(bench.exec, out, bench.tensor(DType::f32, {n, width}, x)), n);
  // The directions are orthonormal and span the inputs: each input is the sum of its shares.
  const Matrix v = bench.read(out.directions);
  for (std::int64_t t = 0; t < n; ++t) {
    double whole = 0, shares = 0;
    for (std::int64_t j = 0; j < width; ++j) whole += x[at(t, j, width)] * x[at(t, j, width)];
    for (std::int64_t i = 0; i < n; ++i) {
      double share = 0;
      for (std::int64_t j = 0; j < width; ++j) share += x[at(t, j, width)] * v[at(i, j, width)];
      shares += share * share;
    }
    EXPECT_NEAR(shares, whole, 1e-6 * whole) << "input " << t;
  }
}

TEST_P(WeightsPrincipal, DropsDirectionsWithoutEnergy) {
  constexpr std::int64_t n = 24, width = 60, distinct = 9;
  Matrix x(static_cast<std::size_t>(n * width), 0.0);
  const Matrix some = rounded(inputs(distinct, width, 1, 4), DType::bf16);
  for (std::int64_t i = 0; i < n; ++i) {  // inputs repeat, and the last ones are nothing
    if (i < 20) std::copy_n(some.begin() + i % distinct * width, width, x.begin() + i * width);
  }
  for (const std::int64_t kept : {distinct, std::int64_t{0}}) {
    if (kept == 0) std::fill(x.begin(), x.end(), 0.0);
    const PrincipalDirections out = room(n, width);
    EXPECT_EQ(principal_of_inputs(bench.exec, out, bench.tensor(DType::bf16, {n, width}, x)), kept);
    check(out, kept, covariance(x, n, width));
    const Matrix rest = bench.read(out.directions.slice_rows(kept, n));
    EXPECT_EQ(rest, Matrix(static_cast<std::size_t>((n - kept) * width), 0.0));
    EXPECT_EQ(bench.read(out.energies.slice(0, kept, n)), Matrix(static_cast<std::size_t>(n - kept), 0.0));
  }
}

TEST_P(WeightsPrincipal, PlansWhatItTakes) {
  constexpr std::int64_t n = 24, width = 60;
  backend::Exec plan = backend::Exec::planner(GetParam());
  const auto keep = [&](Shape shape) { return plan.arena().keep(MemoryClass::weights, "x", DType::f32, shape); };
  EXPECT_EQ(principal_of_inputs(plan, {keep({n}), keep({n, width})}, keep({n, width})), n);
  const PrincipalDirections out = room(n, width);
  principal_of_inputs(bench.exec, out, bench.tensor(DType::f32, {n, width}, inputs(n, width, 9, 5)));
  EXPECT_EQ(bench.exec.arena().peak(), plan.arena().peak());

  plan = backend::Exec::planner(GetParam());
  principal_of_covariance(plan, {keep({n}), keep({n, n})}, keep({n, n}));
  bench = TestBench(GetParam());
  const PrincipalDirections square = room(n, n);
  principal_of_covariance(bench.exec, square, bench.tensor(DType::f32, {n, n}, covariance(inputs(n, n, 1, 6), n, n)));
  EXPECT_EQ(bench.exec.arena().peak(), plan.arena().peak());
}

TEST_P(WeightsPrincipal, RefusesWhatItCannotSolve) {
  const PrincipalDirections out = room(4, 6), square = room(4, 4);
  Matrix x = random_values(24, 7);
  x[5] = std::numeric_limits<double>::infinity();
  EXPECT_THROW(principal_of_inputs(bench.exec, out, bench.tensor(DType::f32, {4, 6}, x)), UserError);
  EXPECT_THROW(
      principal_of_covariance(bench.exec, square, bench.tensor(DType::f32, {4, 4}, {x.begin(), x.begin() + 16})),
      UserError);
  EXPECT_THROW(principal_of_inputs(bench.exec, room(6, 4), bench.poisoned(DType::f32, {6, 4})), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightsPrincipal, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
