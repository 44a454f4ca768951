#include "parallel/split_projection.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/simulated_ranks.h"
#include "support/device_tensors.h"
#include "weights/decompose.h"

namespace inlay::testing {
namespace {

using parallel::AllReduce;
using parallel::ColumnRange;
using parallel::columns_of;

// Numbers as a matrix on the host.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;

  double at(std::int64_t row, std::int64_t col) const { return values[static_cast<std::size_t>(row * cols + col)]; }
  double& at(std::int64_t row, std::int64_t col) { return values[static_cast<std::size_t>(row * cols + col)]; }
  Matrix block(std::int64_t row0, std::int64_t row1, std::int64_t col0, std::int64_t col1) const {
    Matrix result{row1 - row0, col1 - col0, {}};
    for (std::int64_t i = row0; i < row1; ++i) {
      for (std::int64_t j = col0; j < col1; ++j) result.values.push_back(at(i, j));
    }
    return result;
  }
  void put(std::int64_t row, std::int64_t col, const Matrix& part) {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      for (std::int64_t j = 0; j < part.cols; ++j) at(row + i, col + j) = part.at(i, j);
    }
  }
};

// a · bᵀ in double.
Matrix products(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.rows, std::vector<double>(static_cast<std::size_t>(a.rows * b.rows), 0.0)};
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) {
      for (std::int64_t k = 0; k < a.cols; ++k) c.at(i, j) += a.at(i, k) * b.at(j, k);
    }
  }
  return c;
}

// The specification, in double: F − (F·Hᵀ)·H.
Matrix projected(const Matrix& factor, const Matrix& basis) {
  const Matrix coefficients = products(factor, basis);
  Matrix result = factor;
  for (std::int64_t i = 0; i < factor.rows; ++i) {
    for (std::int64_t k = 0; k < basis.rows; ++k) {
      for (std::int64_t j = 0; j < factor.cols; ++j) result.at(i, j) -= coefficients.at(i, k) * basis.at(k, j);
    }
  }
  return result;
}

double norm(const Matrix& x) {
  double sum = 0;
  for (const double value : x.values) sum += value * value;
  return std::sqrt(sum);
}

// A frozen basis and a factor that leaks into it. Errors are told in units of the factor as it was: where most of it is
// projected away, what is left carries the rounding of what was there.
struct Problem {
  Matrix factor, basis;

  double leak(const Matrix& result) const { return norm(products(result, basis)) / norm(factor); }
  double error(const Matrix& result) const {
    Matrix difference = projected(factor, basis);
    for (std::size_t i = 0; i < difference.values.size(); ++i) difference.values[i] -= result.values[i];
    return norm(difference) / norm(factor);
  }
};

class ParallelSplitProjection : public ::testing::TestWithParam<Device> {
 protected:
  static constexpr std::size_t rank_memory = std::size_t{64} << 20;

  // With a basis as decomposition makes it, of either side of an N × M weight.
  Problem problem(std::int64_t n, std::int64_t m, std::int64_t frozen, bool left) {
    TestBench bench(GetParam());
    const std::int64_t rank = std::min(n, m), width = left ? n : m;
    const View u = bench.poisoned(DType::f32, {rank, n}), s = bench.poisoned(DType::f32, {rank}),
               v = bench.poisoned(DType::f32, {rank, m});
    weights::decompose(bench.exec, {u, s, v}, bench.tensor(DType::f32, {n, m}, random_values(n * m, 1)));
    const std::int64_t trained = std::max<std::int64_t>(rank - frozen, 1);
    return {{trained, width, rounded(random_values(trained * width, 2), DType::f32)},
            {frozen, width, bench.read((left ? u : v).slice_rows(0, frozen))}};
  }

  // On real shards: every rank uploads its own columns, and no other.
  Matrix split(const Problem& x, int ranks) {
    Matrix result = x.factor;
    SimulatedRanks(ranks).run([&](int rank, const AllReduce& all_reduce) {
      const auto [begin, end] = columns_of(x.factor.cols, rank, ranks);
      TestBench bench(GetParam(), rank_memory);
      const auto shard = [&](const Matrix& whole) {
        return bench.tensor(DType::f32, {whole.rows, end - begin}, whole.block(0, whole.rows, begin, end).values);
      };
      const View factor = shard(x.factor), basis = shard(x.basis);
      parallel::project_split(bench.exec, factor, basis, all_reduce);
      result.put(0, begin, {x.factor.rows, end - begin, bench.read(factor)});
    });
    return result;
  }
};

TEST(ParallelColumns, CoverTheWidthInOrder) {
  for (const std::int64_t width : {0, 1, 3, 16, 1000, 14336}) {
    for (const int ranks : {1, 2, 3, 4, 5, 7, 64}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ColumnRange range = columns_of(width, rank, ranks);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, width / ranks);
        EXPECT_LE(range.end - range.begin, width / ranks + 1);
        next = range.end;
      }
      EXPECT_EQ(next, width);
    }
  }
  EXPECT_THROW(columns_of(4, 2, 2), InternalError);
}

// Rank counts that divide nothing. Against the fp64 specification, to fp32 rounding: sums of up to 97 terms err by
// about √97 · 2⁻²⁴ = 6e-7 if nothing cancels, and all but a few do.
TEST_P(ParallelSplitProjection, EqualsTheUnsplitOne) {
  for (const auto& [n, m, frozen] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{97, 61, 40}, {61, 97, 13}, {64, 64, 63}, {3, 50, 1}}) {
    for (const bool left : {true, false}) {
      const Problem x = problem(n, m, frozen, left);
      for (const int ranks : {1, 2, 3, 4, 5, 7}) {
        SCOPED_TRACE(
            fmt::format("{} x {}, {} frozen, {} side, {} ranks", n, m, frozen, left ? "left" : "right", ranks));
        const Matrix result = split(x, ranks);
        EXPECT_LE(x.error(result), 5e-7);
        EXPECT_GT(x.leak(x.factor), 0.05) << "nothing to project";
        EXPECT_LE(x.leak(result), 5e-7);
      }
    }
  }
}

TEST_P(ParallelSplitProjection, RanksWithoutColumnsTakePart) {
  const Problem x = problem(3, 9, 2, true);  // three columns
  for (const int ranks : {4, 5, 7}) {
    EXPECT_LE(x.error(split(x, ranks)), 5e-7) << ranks << " ranks";
  }
}

// The well-known wrong version, kept so that nobody takes it for a shortcut: factors and basis split along their rank,
// each rank's coefficients summed with those of other rows and other directions. With P ranks, of the leak's P × P
// blocks all but the P on the diagonal stay as they were, and those become sums of the P − 1 others: the leak grows by
// √(2(P − 1)/P).
TEST_P(ParallelSplitProjection, SplittingAlongTheRankLeavesTheLeak) {
  const Problem x = problem(96, 96, 48, false);
  constexpr int ranks = 4;
  const std::int64_t rows = x.factor.rows / ranks, directions = x.basis.rows / ranks;
  ASSERT_EQ(rows * ranks, x.factor.rows);
  Matrix result = x.factor;
  SimulatedRanks(ranks).run([&](int rank, const AllReduce& all_reduce) {
    TestBench bench(GetParam(), rank_memory);
    const auto shard = [&](const Matrix& whole, std::int64_t count) {
      return bench.tensor(DType::f32, {count, whole.cols},
                          whole.block(rank * count, (rank + 1) * count, 0, whole.cols).values);
    };
    const View factor = shard(x.factor, rows), basis = shard(x.basis, directions);
    parallel::project_split(bench.exec, factor, basis, all_reduce);
    result.put(rank * rows, 0, {rows, x.factor.cols, bench.read(factor)});
  });
  EXPECT_GT(x.error(result), 0.3) << "it must not match";
  const double before = x.leak(x.factor), after = x.leak(result);
  EXPECT_GT(after, 0.9 * before) << "leaks " << before << " before and " << after << " after";
  EXPECT_LE(x.leak(split(x, ranks)), 5e-7) << "and the right one";
}

TEST_P(ParallelSplitProjection, PlansItsCoefficients) {
  backend::Exec plan = backend::Exec::planner(GetParam());
  const auto keep = [&](Shape shape) { return plan.arena().keep(MemoryClass::weights, "x", DType::f32, shape); };
  const View factor = keep({32, 100}), basis = keep({48, 100});
  int reduced = 0;
  const std::size_t before = plan.arena().used();
  parallel::project_split(plan, factor, basis, [&](backend::Exec&, View sum) {
    EXPECT_EQ(sum.shape(), (Shape{32, 48}));
    ++reduced;
  });
  EXPECT_EQ(reduced, 1);
  EXPECT_EQ(plan.arena().used(), before);
  EXPECT_GE(plan.arena().peak(), before + 32 * 48 * sizeof(float));
  EXPECT_THROW(parallel::project_split(plan, factor, keep({48, 99}), [](auto&&...) {}), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, ParallelSplitProjection, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
