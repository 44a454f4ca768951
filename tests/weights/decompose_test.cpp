#include "weights/decompose.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "support/device_tensors.h"
#include "support/jacobi_svd.h"
#include "weights/thin_svd.h"

namespace inlay::testing {
namespace {

using weights::decompose;
using weights::Decomposition;

using Matrix = std::vector<double>;

struct Extents {
  std::int64_t rows, cols;
};

// [rows, cols] of a · bᵀ or a · b.
Matrix times(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t cols, bool transposed) {
  const std::int64_t depth = static_cast<std::int64_t>(a.size()) / rows;
  Matrix c(static_cast<std::size_t>(rows * cols), 0.0);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const double factor = a[static_cast<std::size_t>(i * depth + k)];
      for (std::int64_t j = 0; j < cols; ++j) {
        c[static_cast<std::size_t>(i * cols + j)] +=
            factor * b[static_cast<std::size_t>(transposed ? j * depth + k : k * cols + j)];
      }
    }
  }
  return c;
}

// Orthonormal rows, by Gram and Schmidt in double, twice.
Matrix orthonormal(std::int64_t count, std::int64_t length, std::uint64_t seed) {
  Matrix rows = random_values(count * length, seed);
  const auto row = [&](std::int64_t i) { return rows.data() + i * length; };
  for (std::int64_t i = 0; i < count; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < i; ++j) {
        double dot = 0;
        for (std::int64_t k = 0; k < length; ++k) dot += row(i)[k] * row(j)[k];
        for (std::int64_t k = 0; k < length; ++k) row(i)[k] -= dot * row(j)[k];
      }
    }
    double norm = 0;
    for (std::int64_t k = 0; k < length; ++k) norm += row(i)[k] * row(i)[k];
    for (std::int64_t k = 0; k < length; ++k) row(i)[k] /= std::sqrt(norm);
  }
  return rows;
}

// A matrix with the singular values sigma(i), i < min(rows, cols).
Matrix with_spectrum(const Extents& x, const std::function<double(std::int64_t)>& sigma) {
  const std::int64_t rank = std::min(x.rows, x.cols);
  Matrix u = orthonormal(rank, x.rows, 11), v = orthonormal(rank, x.cols, 12);
  Matrix scaled(static_cast<std::size_t>(x.rows * rank));
  for (std::int64_t i = 0; i < rank; ++i) {
    for (std::int64_t j = 0; j < x.rows; ++j) {
      scaled[static_cast<std::size_t>(j * rank + i)] = sigma(i) * u[static_cast<std::size_t>(i * x.rows + j)];
    }
  }
  return times(scaled, v, x.rows, x.cols, false);
}

// The largest distance of rows · rowsᵀ from the identity.
double obliqueness(const Matrix& rows, std::int64_t count) {
  const Matrix gram = times(rows, rows, count, count, true);
  double worst = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < count; ++j) {
      const double distance = std::abs(gram[static_cast<std::size_t>(i * count + j)] - (i == j ? 1.0 : 0.0));
      if (!(distance <= worst)) worst = distance;  // a NaN too
    }
  }
  return worst;
}

struct Result {
  Matrix u, s, v;
};

class WeightsDecompose : public ::testing::TestWithParam<Device> {
 protected:
  Result run(const Extents& x, const Matrix& w, DType dtype) {
    const std::int64_t rank = std::min(x.rows, x.cols);
    const auto mark = bench.exec.arena().mark();
    const Decomposition out{bench.poisoned(DType::f32, {rank, x.rows}), bench.poisoned(DType::f32, {rank}),
                            bench.poisoned(DType::f32, {rank, x.cols})};
    decompose(bench.exec, out, bench.tensor(dtype, {x.rows, x.cols}, w));
    Result result{bench.read(out.u), bench.read(out.s), bench.read(out.v)};
    bench.exec.arena().release_to(mark);
    return result;
  }

  // Everything that makes it a singular value decomposition, to fp32 rounding (2⁻²⁴ ≈ 6e-8 in every number stored).
  void check(const Extents& x, const Matrix& w, DType dtype = DType::f32) {
    SCOPED_TRACE(fmt::format("{} x {} {}", x.rows, x.cols, name_of(dtype)));
    const std::int64_t rank = std::min(x.rows, x.cols);
    const Matrix stored = rounded(w, dtype);
    const Result svd = run(x, stored, dtype);
    EXPECT_LE(obliqueness(svd.u, rank), 5e-7);
    EXPECT_LE(obliqueness(svd.v, rank), 5e-7);
    Matrix scaled(static_cast<std::size_t>(x.rows * rank));
    for (std::int64_t i = 0; i < rank; ++i) {
      for (std::int64_t j = 0; j < x.rows; ++j) {
        scaled[static_cast<std::size_t>(j * rank + i)] =
            svd.s[static_cast<std::size_t>(i)] * svd.u[static_cast<std::size_t>(i * x.rows + j)];
      }
    }
    double difference = 0, norm = 0;
    const Matrix again = times(scaled, svd.v, x.rows, x.cols, false);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      difference += (again[i] - stored[i]) * (again[i] - stored[i]);
      norm += stored[i] * stored[i];
    }
    EXPECT_LE(std::sqrt(difference), 2e-7 * std::sqrt(norm));
    const Matrix expected = jacobi_singular_values(stored, x.rows, x.cols);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_GE(svd.s[i], 0.0);
      if (i > 0) {
        EXPECT_LE(svd.s[i], svd.s[i - 1]) << "order at " << i;
      }
      // fp32 rounding, and rounding of the fp64 work: up to the longer side times eps of the largest.
      EXPECT_NEAR(svd.s[i], expected[i], 1.2e-7 * expected[i] + 1e-13 * expected[0]) << "singular value " << i;
    }
  }

  TestBench bench{GetParam()};
};

TEST_P(WeightsDecompose, RandomMatricesOfAwkwardShapes) {
  for (const Extents& x :
       {Extents{1, 1}, {1, 9}, {9, 1}, {2, 2}, {3, 5}, {5, 3}, {17, 64}, {64, 17}, {65, 65}, {96, 130}, {130, 96}}) {
    const Matrix w = random_values(x.rows * x.cols, 1);
    check(x, w);
    check(x, w, DType::bf16);
  }
}

TEST_P(WeightsDecompose, RepeatedSingularValues) {
  for (const Extents& x : {Extents{24, 24}, {24, 40}, {40, 24}}) {
    Matrix identity(static_cast<std::size_t>(x.rows * x.cols), 0.0);
    for (std::int64_t i = 0; i < 24; ++i) identity[static_cast<std::size_t>(i * x.cols + i)] = 1;
    check(x, identity);
    check(x, with_spectrum(x, [](std::int64_t i) { return i < 8 ? 3.0 : i < 16 ? 1.0 : 1e-6; }));
    Matrix permuted(static_cast<std::size_t>(x.rows * x.cols), 0.0);  // all equal, and no rounding anywhere
    for (std::int64_t i = 0; i < 24; ++i) permuted[static_cast<std::size_t>(i * x.cols + (7 * i + 3) % 24)] = -2;
    check(x, permuted);
  }
}

// Down to below what the Gram matrix alone can see (1e-8), at the borders between rounds, and below rounding.
TEST_P(WeightsDecompose, TinySingularValues) {
  for (const Extents& x : {Extents{48, 48}, {48, 70}, {70, 48}}) {
    check(x, with_spectrum(x, [](std::int64_t i) { return std::pow(10.0, -0.1 * static_cast<double>(i)); }));
    check(x, with_spectrum(x, [](std::int64_t i) { return std::pow(10.0, -0.4 * static_cast<double>(i)); }));
    check(x, with_spectrum(x, [](std::int64_t i) { return i < 20 ? 1.0 : 1e-4; }));
    check(x, with_spectrum(x, [](std::int64_t i) { return i == 0 ? 1e6 : 1e-3 / static_cast<double>(i); }));
    check(x, with_spectrum(x, [](std::int64_t i) { return std::pow(2.0, -0.3 * static_cast<double>(i)) * 1e-30; }));
  }
}

TEST_P(WeightsDecompose, LowRank) {
  for (const Extents& x : {Extents{33, 33}, {33, 50}, {50, 33}}) {
    for (const std::int64_t rank : {0, 1, 7, 32}) {
      SCOPED_TRACE(rank);
      // Small integers: the product is exact, and so is its rank.
      Matrix a = random_values(x.rows * std::max<std::int64_t>(rank, 1), 3);
      Matrix b = random_values(std::max<std::int64_t>(rank, 1) * x.cols, 4);
      for (double& value : a) value = rank == 0 ? 0.0 : std::round(4 * value);
      for (double& value : b) value = std::round(4 * value);
      const Matrix w = times(a, b, x.rows, x.cols, false);
      check(x, w);
      const Result svd = run(x, w, DType::f32);
      for (std::int64_t i = rank; i < 33; ++i) EXPECT_EQ(svd.s[static_cast<std::size_t>(i)], 0.0) << i;
    }
    // Rows and columns of zeros, and twins.
    Matrix w = random_values(x.rows * x.cols, 5);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      w[static_cast<std::size_t>(3 * x.cols + j)] = 0;
      w[static_cast<std::size_t>(9 * x.cols + j)] = w[static_cast<std::size_t>(8 * x.cols + j)];
    }
    for (std::int64_t i = 0; i < x.rows; ++i) w[static_cast<std::size_t>(i * x.cols + 5)] = 0;
    check(x, w);
  }
}

// What fp32 would hide: before it is rounded, every round's work is orthonormal to far below fp32 rounding.
TEST_P(WeightsDecompose, IsOrthonormalInDoubleBeforeItIsRounded) {
  for (const Extents& x : {Extents{48, 48}, {48, 70}, {70, 48}}) {
    for (const double decades : {0.08, 0.2, 0.4}) {
      const auto sigma = [&](std::int64_t i) { return std::pow(10.0, -decades * static_cast<double>(i)); };
      const View w = bench.tensor(DType::f32, {x.rows, x.cols}, with_spectrum(x, sigma));
      backend::ScratchScope scope(bench.exec.arena());
      const weights::ThinSvd svd = weights::thin_svd(bench.exec, w, weights::OpenDirections::fill, "w");
      EXPECT_LE(obliqueness(bench.read(svd.u), 48), 1e-12);
      EXPECT_LE(obliqueness(bench.read(svd.v), 48), 1e-12);
    }
  }
}

TEST_P(WeightsDecompose, TheSameMatrixGivesTheSameBits) {
  const Extents x{40, 56};
  const Matrix w =
      with_spectrum(x, [](std::int64_t i) { return i < 30 ? std::pow(0.5, static_cast<double>(i)) : 0.0; });
  const Result first = run(x, w, DType::f32), second = run(x, w, DType::f32);
  EXPECT_EQ(first.u, second.u);
  EXPECT_EQ(first.s, second.s);
  EXPECT_EQ(first.v, second.v);
}

// A plan covers every matrix of the shape, those that take more rounds too.
TEST_P(WeightsDecompose, PlansWhatItTakes) {
  for (const Extents& x : {Extents{40, 64}, {64, 40}, {64, 64}}) {
    const std::int64_t rank = std::min(x.rows, x.cols);
    backend::Exec plan = backend::Exec::planner(GetParam());
    const auto keep = [&](Shape shape) { return plan.arena().keep(MemoryClass::weights, "w", DType::f32, shape); };
    decompose(plan, {keep({rank, x.rows}), keep({rank}), keep({rank, x.cols})}, keep({x.rows, x.cols}));
    EXPECT_GT(plan.arena().peak(), plan.arena().used());
    for (const double zero_from : {64.0, 20.0, 0.0}) {
      bench = TestBench(GetParam());
      run(x, with_spectrum(x, [&](auto i) { return static_cast<double>(i) < zero_from ? 1.0 / (1 << i % 30) : 0.0; }),
          DType::f32);
      EXPECT_EQ(bench.exec.arena().peak(), plan.arena().peak());
    }
  }
}

TEST_P(WeightsDecompose, SaysWhichWeightIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Matrix w = random_values(12 * 8, 6);
    w[37] = bad;
    const Decomposition out{bench.poisoned(DType::f32, {8, 12}), bench.poisoned(DType::f32, {8}),
                            bench.poisoned(DType::f32, {8, 8})};
    try {
      decompose(bench.exec, out, bench.tensor(DType::f32, {12, 8}, w), "layers.3.mlp.down");
      FAIL() << "no error";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("layers.3.mlp.down"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightsDecompose, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
