#include "backend/grouped_matmul.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <numeric>
#include <tuple>

#include "support/device_tensors.h"

// Products of grouped rows against fp64 sums of the rounded operands, over groups that are empty, alone, uneven.
namespace inlay::testing {

namespace {

using backend::Grad;
using backend::Transpose;

// The kernel that the GPU takes by itself, and the others by name.
class Route {
 public:
  explicit Route(const std::string& name) { ::setenv("INLAY_GROUPED_MATMUL", name.c_str(), 1); }
  ~Route() { ::unsetenv("INLAY_GROUPED_MATMUL"); }
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
};

struct GroupedCase {
  std::vector<std::int32_t> sizes;
  std::int64_t k, n;

  std::int64_t groups() const { return std::ssize(sizes); }
  std::int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> result(sizes.size() + 1);
    std::partial_sum(sizes.begin(), sizes.end(), result.begin() + 1);
    return result;
  }
  std::string name() const { return fmt::format("{} groups, {} rows, {} x {}", groups(), rows(), k, n); }
};

// Edges of the tiles (64, 128, 240, 256) and of their depth (16, 32, 64), aligned for the tensor cores or not.
const std::vector<GroupedCase>& cases() {
  static const std::vector<GroupedCase> list = {{{1}, 1, 1},
                                                {{3, 0, 5}, 7, 13},
                                                {{0, 0, 0, 1}, 8, 8},
                                                {{200, 0, 0}, 72, 136},
                                                {{0, 67, 129}, 64, 240},
                                                {{3, 130, 1, 64, 257, 0}, 200, 256},
                                                {{128, 127, 129, 63, 65}, 136, 504},
                                                {{70, 9}, 65, 101},
                                                {{31, 400, 2}, 320, 728}};
  return list;
}

class BackendGroupedMatmul : public ::testing::TestWithParam<std::tuple<Device, DType, std::string>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  // Errors of fp32 sums grow with the terms, stored results with themselves.
  double allowed(double magnitude, double value, DType stored) const {
    const double rounding = stored == DType::bf16 ? 0x1p-8 : 0x1p-23;
    return 4e-7 * magnitude + rounding * std::abs(value) + 1e-30;
  }

  std::vector<double> numbers(std::int64_t count, std::uint64_t seed) const {
    return rounded(random_values(count, seed), dtype());
  }
};

// Rows of all groups and a row behind them that nobody may read or write.
TEST_P(BackendGroupedMatmul, RowsTimesTheMatrixOfTheirGroup) {
  const Route route(std::get<2>(GetParam()));
  for (const GroupedCase& c : cases()) {
    for (const Transpose transpose : {Transpose::no, Transpose::yes}) {
      SCOPED_TRACE(c.name() + (transpose == Transpose::yes ? ", transposed" : ""));
      TestBench bench(device());
      const std::int64_t rows = c.rows(), matrix = c.k * c.n, pad = 8;
      const auto a = numbers(rows * c.k, 1), b = numbers(c.groups() * matrix, 2);
      std::vector<double> padded(static_cast<std::size_t>((rows + 1) * (c.k + pad)), std::nan(""));
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(&a[static_cast<std::size_t>(i * c.k)], c.k, &padded[static_cast<std::size_t>(i * (c.k + pad))]);
      const View whole = bench.tensor(dtype(), {rows + 1, c.k + pad}, padded);
      const View out = bench.poisoned(dtype(), {rows + 1, c.n + pad});
      const bool t = transpose == Transpose::yes;
      const View all = bench.tensor(dtype(), {c.groups(), t ? c.n : c.k, t ? c.k : c.n}, b);
      std::vector<ConstView> matrices;
      for (std::int64_t g = 0; g < c.groups(); ++g) {
        matrices.push_back(all.slice(0, g, g + 1).reshape({t ? c.n : c.k, t ? c.k : c.n}));
      }
      const auto multiply = [&](backend::MatmulScale scale) {
        backend::grouped_matmul(bench.exec, out.slice_rows(0, rows).slice_cols(0, c.n),
                                whole.slice_rows(0, rows).slice_cols(0, c.k), matrices, transpose,
                                bench.indices(c.offsets()), scale);
        return bench.read(out);
      };
      const auto actual = multiply({}), added = multiply({.alpha = 0.5f, .beta = 1.0f});
      const auto offsets = c.offsets();
      std::size_t group = 0;
      for (std::int64_t i = 0; i <= rows; ++i) {
        while (group < matrices.size() && i >= offsets[group + 1]) ++group;
        for (std::int64_t j = 0; j < c.n + pad; ++j) {
          const double value = actual[static_cast<std::size_t>(i * (c.n + pad) + j)];
          if (i == rows || j >= c.n) {
            ASSERT_TRUE(std::isnan(value)) << "written at " << i << ", " << j;
            continue;
          }
          double sum = 0, magnitude = 0;
          for (std::int64_t k = 0; k < c.k; ++k) {
            const double x = a[static_cast<std::size_t>(i * c.k + k)];
            const double y =
                b[group * static_cast<std::size_t>(matrix) + static_cast<std::size_t>(t ? j * c.k + k : k * c.n + j)];
            sum += x * y;
            magnitude += std::abs(x * y);
          }
          ASSERT_NEAR(value, sum, allowed(magnitude, sum, dtype())) << "at " << i << ", " << j;
          // What is added to was rounded before.
          ASSERT_NEAR(added[static_cast<std::size_t>(i * (c.n + pad) + j)], value + 0.5 * sum,
                      allowed(magnitude, 1.5 * sum, dtype()))
              << "at " << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(BackendGroupedMatmul, SumsOverTheRowsOfEachGroup) {
  const Route route(std::get<2>(GetParam()));
  for (const GroupedCase& c : cases()) {
    SCOPED_TRACE(c.name());
    TestBench bench(device());
    const std::int64_t rows = c.rows(), matrix = c.k * c.n;
    const auto a = numbers(rows * c.k, 3), b = numbers(rows * c.n, 4);
    const auto before = rounded(random_values(c.groups() * matrix, 5), DType::f32);
    const View left = bench.tensor(dtype(), {rows, c.k}, a), right = bench.tensor(dtype(), {rows, c.n}, b);
    const View offsets = bench.indices(c.offsets());
    const View fresh = bench.poisoned(DType::f32, {c.groups(), c.k, c.n});
    const View grown = bench.tensor(DType::f32, {c.groups(), c.k, c.n}, before);
    const auto parts = [&](const View& all, std::int64_t without) {
      std::vector<View> result;
      for (std::int64_t g = 0; g < c.groups(); ++g) {
        result.push_back(g == without ? View() : all.slice(0, g, g + 1).reshape({c.k, c.n}));
      }
      return result;
    };
    const std::int64_t without = c.groups() > 1 ? 1 : -1;  // a frozen one
    backend::grouped_matmul_over_rows(bench.exec, parts(fresh, without), Grad::overwrite, left, right, offsets);
    backend::grouped_matmul_over_rows(bench.exec, parts(grown, without), Grad::accumulate, left, right, offsets);
    const auto first = bench.read(fresh), second = bench.read(grown);
    const auto begin = c.offsets();
    for (std::int64_t g = 0; g < c.groups(); ++g) {
      for (std::int64_t i = 0; i < matrix; ++i) {
        const auto at = static_cast<std::size_t>(g * matrix + i);
        if (g == without) {
          ASSERT_TRUE(std::isnan(first[at]) && second[at] == before[at]) << "a frozen matrix was written";
          continue;
        }
        double sum = 0, magnitude = 0;
        for (std::int64_t r = begin[static_cast<std::size_t>(g)]; r < begin[static_cast<std::size_t>(g) + 1]; ++r) {
          const double term =
              a[static_cast<std::size_t>(r * c.k + i / c.n)] * b[static_cast<std::size_t>(r * c.n + i % c.n)];
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(first[at], sum, allowed(magnitude, sum, DType::f32)) << "group " << g;
        ASSERT_NEAR(second[at], before[at] + sum, allowed(magnitude + std::abs(before[at]), sum, DType::f32))
            << "group " << g;
      }
    }
  }
}

TEST_P(BackendGroupedMatmul, NoRowsAtAll) {
  const Route route(std::get<2>(GetParam()));
  TestBench bench(device());
  const View nothing = bench.poisoned(dtype(), {1, 8}).slice_rows(0, 0), c = bench.poisoned(DType::f32, {8, 8});
  const std::vector<View> out = {c};
  backend::grouped_matmul_over_rows(bench.exec, out, Grad::overwrite, nothing, nothing, bench.indices({0, 0}));
  for (const double x : bench.read(c)) ASSERT_EQ(x, 0.0);
}

// However the rows fall into groups: a plan does not know it.
TEST_P(BackendGroupedMatmul, TheRunTakesWhatThePlanTakes) {
  const std::int64_t rows = 60, k = 40, n = 96;
  const auto peak = [&](backend::Exec exec, const std::vector<std::int32_t>& ends) {
    const auto tensor = [&](DType type, Shape shape) {
      const View view = exec.arena().keep(MemoryClass::activations, "operand", type, shape);
      exec.fill_zero(view);
      return view;
    };
    const View a = tensor(dtype(), {rows, k}), c = tensor(dtype(), {rows, n}), offsets = tensor(DType::i32, {4});
    exec.upload(offsets, ends.data());
    const std::vector<ConstView> b(3, tensor(dtype(), {n, k}));
    const std::vector<View> sums(3, tensor(DType::f32, {k, n}));
    backend::grouped_matmul(exec, c, a, b, Transpose::yes, offsets);
    backend::grouped_matmul_over_rows(exec, sums, Grad::overwrite, a, c, offsets);
    return exec.arena().peak();
  };
  const std::size_t planned = peak(backend::Exec::planner(device()), {0, 20, 40, 60});
  EXPECT_EQ(peak(backend::Exec::runner(device(), planned), {0, 59, 59, 60}), planned);
  EXPECT_EQ(peak(backend::Exec::runner(device(), planned), {0, 20, 40, 60}), planned);
}

TEST_P(BackendGroupedMatmul, SameBitsRunAfterRun) {
  const Route route(std::get<2>(GetParam()));
  TestBench bench(device());
  const View a = bench.tensor(dtype(), {300, 128}, numbers(300 * 128, 6)), offsets = bench.indices({0, 170, 300});
  const View first = bench.poisoned(DType::f32, {2, 128, 128}), second = bench.poisoned(DType::f32, {2, 128, 128});
  for (const View& to : {first, second}) {
    const std::vector<View> parts = {to.slice(0, 0, 1).reshape({128, 128}), to.slice(0, 1, 2).reshape({128, 128})};
    backend::grouped_matmul_over_rows(bench.exec, parts, Grad::overwrite, a, a, offsets);
  }
  EXPECT_EQ(bench.read(first), bench.read(second));
}

std::vector<std::tuple<Device, DType, std::string>> parameters() {
  std::vector<std::tuple<Device, DType, std::string>> result;
  for (const Device device : devices()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      result.emplace_back(device, dtype, "");
      if (device == Device::cuda) result.emplace_back(device, dtype, "plain");
      if (device == Device::cuda && dtype == DType::bf16) result.emplace_back(device, dtype, "tensor");
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(All, BackendGroupedMatmul, ::testing::ValuesIn(parameters()), [](const auto& info) {
  const std::string& route = std::get<2>(info.param);
  return case_name(std::get<0>(info.param), std::get<1>(info.param)) + (route.empty() ? "" : "_" + route);
});

}  // namespace

}  // namespace inlay::testing
