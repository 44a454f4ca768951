#include "backend/fp8_matmul.h"

#include <gtest/gtest.h>

#include "ops/fp8.h"
#include "support/fp8_operands.h"

// Products against fp64 sums of what the codes and scales stand for. C lies in a poisoned frame.
namespace inlay::testing {
namespace {

using backend::Fp8Matrix;
using backend::Fp8Sums;
using ops::Fp8Recipe;
using ops::Fp8Role;
using ops::Fp8Use;

struct ExtentsFp8 {
  std::int64_t m, n, k;
};

class BackendFp8Matmul : public ::testing::TestWithParam<Device> {
 protected:
  // The largest error, measured by the magnitudes of the terms: what cancels in a sum still rounds.
  double error(const ExtentsFp8& x, Fp8Recipe recipe, DType format, DType out, float beta,
               Fp8Sums sums = Fp8Sums::fp32) {
    TestBench bench(GetParam(), std::size_t{128} << 20);
    const ops::Fp8Settings settings{.recipe = recipe, .gradients = format};
    const auto operand = [&](Fp8Role role, std::int64_t rows, std::uint64_t seed) {
      // Rows of unlike sizes, so that scales matter.
      auto values = random_values(rows * x.k, seed);
      for (std::int64_t i = 0; i < rows * x.k; ++i) {
        values[static_cast<std::size_t>(i)] *=
            std::exp2(static_cast<double>(i / x.k % 5) - static_cast<double>(i % x.k / 64 % 4));
      }
      const auto forms = ops::keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, Fp8Use::rows, rows, x.k);
      ops::quantise_fp8(bench.exec, forms, bench.tensor(DType::f32, {rows, x.k}, values));
      return forms.rows;
    };
    const Fp8Matrix a = operand(Fp8Role::gradient, x.m, 1), b = operand(Fp8Role::weight, x.n, 2);
    const auto left = opened(bench, a), right = opened(bench, b);
    const auto before = rounded(random_values(x.m * x.n, 3), out);
    const View frame = bench.poisoned(out, {x.m + 1, x.n + 5});
    const View c = frame.slice_rows(0, x.m).slice_cols(0, x.n);
    const View start = bench.tensor(out, {x.m, x.n}, before);
    for (std::int64_t row = 0; beta != 0 && row < x.m; ++row) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(x.n) * size_of(out));
      bench.exec.download(bytes.data(), start.slice_rows(row, row + 1));
      bench.exec.upload(c.slice_rows(row, row + 1), bytes.data());
    }
    backend::fp8_matmul(bench.exec, c, a, b, {.alpha = 0.5f, .beta = beta}, sums);
    const auto actual = bench.read(c);
    double worst = 0;
    for (std::int64_t i = 0; i < x.m; ++i) {
      for (std::int64_t j = 0; j < x.n; ++j) {
        const auto at = static_cast<std::size_t>(i * x.n + j);
        double sum = beta == 0 ? 0 : before[at], size = std::abs(sum);
        for (std::int64_t k = 0; k < x.k; ++k) {
          const double term =
              0.5 * left[static_cast<std::size_t>(i * x.k + k)] * right[static_cast<std::size_t>(j * x.k + k)];
          sum += term;
          size += std::abs(term);
        }
        // The library may round the product before C is added, and rounds the sum.
        const double product = sum - (beta == 0 ? 0 : before[at]);
        const double rounding = out == DType::bf16 ? (std::abs(sum) + std::abs(product)) * 0x1p-8 : 0;
        worst = std::max(worst, (std::abs(actual[at] - sum) - rounding) / size);
        if (!std::isfinite(actual[at])) return std::numeric_limits<double>::infinity();
      }
    }
    for (const View& margin : {frame.slice_rows(0, x.m).slice_cols(x.n, x.n + 5), frame.slice_rows(x.m, x.m + 1)}) {
      for (const double value : bench.read(margin)) EXPECT_TRUE(std::isnan(value));
    }
    return worst;
  }

  // The CPU sums in fp32. Hopper's tensor cores keep about 13 bits while they sum 32 products, four times before the
  // sum is added up in fp32: at most four times 2⁻¹³ of the terms' magnitudes. (Seen: up to 3.1e-4.)
  double bound() const { return GetParam() == Device::cpu ? 1e-6 : 0x1p-11; }
};

TEST_P(BackendFp8Matmul, MatchesSumsOfWhatTheCodesMean) {
  for (const ExtentsFp8& x : {ExtentsFp8{1, 16, 16}, ExtentsFp8{7, 48, 144}, ExtentsFp8{16, 16, 128},
                              ExtentsFp8{130, 272, 300}, ExtentsFp8{33, 130, 1000}, ExtentsFp8{256, 128, 2048}}) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::row, Fp8Recipe::tensor}) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        for (const DType out : {DType::f32, DType::bf16}) {
          for (const float beta : {0.0f, 1.0f}) {
            EXPECT_LE(error(x, recipe, format, out, beta), bound())
                << fmt::format("{} x {} x {}, {}, {}, {}, beta {}", x.m, x.n, x.k, ops::name_of(recipe),
                               name_of(format), name_of(out), beta);
          }
        }
      }
    }
  }
}

// What stays in the tensor cores loses up to 2⁻¹³ of the sum so far with every 32 terms. A GPU that did not do as told
// would be as exact as above.
TEST_P(BackendFp8Matmul, FastSumsAreCoarserAndStillSums) {
  const ExtentsFp8 x{256, 128, 2048};
  for (const Fp8Recipe recipe : {Fp8Recipe::row, Fp8Recipe::tensor}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const float beta : {0.0f, 1.0f}) {
        SCOPED_TRACE(fmt::format("{}, {}, beta {}", ops::name_of(recipe), name_of(out), beta));
        const double fast = error(x, recipe, DType::e4m3, out, beta, Fp8Sums::fast);
        EXPECT_LE(fast, GetParam() == Device::cpu ? bound() : 2048 / 32 * 0x1p-13);
        if (GetParam() == Device::cuda && out == DType::f32) {
          EXPECT_GT(fast, error(x, recipe, DType::e4m3, out, beta));
        }
      }
    }
  }
}

// The weight's gradient of an expert that got no rows.
TEST_P(BackendFp8Matmul, ASumOfNothingIsZero) {
  constexpr std::int64_t m = 48, n = 32;
  for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::row, Fp8Recipe::tensor}) {
    TestBench bench(GetParam(), std::size_t{64} << 20);
    const ops::Fp8Settings settings{.recipe = recipe};
    const auto form = [&](Fp8Role role, std::int64_t cols) {
      const ops::Fp8Forms forms =
          ops::keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, ops::Fp8Use::columns, 0, cols);
      ops::quantise_fp8(bench.exec, forms, bench.tensor(DType::f32, {0, cols}, {}));
      return forms.columns;
    };
    const View frame = bench.poisoned(DType::f32, {m + 1, n + 5});
    const View inside = frame.slice_rows(0, m).slice_cols(0, n), whole = bench.poisoned(DType::f32, {m, n});
    for (const View& c : {inside, whole}) {
      backend::fp8_matmul(bench.exec, c, form(Fp8Role::gradient, m), form(Fp8Role::input, n));
      for (const double value : bench.read(c)) EXPECT_EQ(value, 0);
    }
    const View ones = bench.tensor(DType::f32, {m, n}, std::vector<double>(m * n, 1.0));
    backend::fp8_matmul(bench.exec, ones, form(Fp8Role::gradient, m), form(Fp8Role::input, n), {.beta = 1.0f});
    for (const double value : bench.read(ones)) EXPECT_EQ(value, 1);
    for (const View& margin : {frame.slice_rows(0, m).slice_cols(n, n + 5), frame.slice_rows(m, m + 1)}) {
      for (const double value : bench.read(margin)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST_P(BackendFp8Matmul, TheSumOverRowsTakesSquaresOfTheInput) {
  constexpr std::int64_t tokens = 200, in = 144, out = 80;
  TestBench bench(GetParam(), std::size_t{64} << 20);
  const auto x = bench.tensor(DType::bf16, {tokens, in}, random_values(tokens * in, 1));
  const auto dy = bench.tensor(DType::bf16, {tokens, out}, random_values(tokens * out, 2, 1e-5));
  const auto left =
      ops::keep_fp8(bench.exec, MemoryClass::weights, "dy", {}, Fp8Role::gradient, Fp8Use::columns, tokens, out);
  const auto right =
      ops::keep_fp8(bench.exec, MemoryClass::weights, "x", {}, Fp8Role::input, Fp8Use::columns, tokens, in);
  ops::quantise_fp8(bench.exec, left, dy);
  ops::quantise_fp8(bench.exec, right, x);
  const View c = bench.poisoned(DType::f32, {out, in});
  backend::fp8_matmul(bench.exec, c, left.columns, right.columns);
  const auto a = opened(bench, left.columns), b = opened(bench, right.columns);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < out; ++i) {
    for (std::int64_t j = 0; j < in; ++j) {
      double sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        sum += a[static_cast<std::size_t>(i * tokens + t)] * b[static_cast<std::size_t>(j * tokens + t)];
      }
      expected.push_back(sum);
    }
  }
  EXPECT_LE(relative_error(bench.read(c), expected), bound());
}

INSTANTIATE_TEST_SUITE_P(All, BackendFp8Matmul, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
