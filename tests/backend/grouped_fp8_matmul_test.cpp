#include "backend/grouped_fp8_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/fp8.h"
#include "support/fp8_operands.h"

// Products of grouped rows against fp64 sums of what the codes and scales stand for, over groups that are empty, alone,
// uneven, and begin anywhere in a block of 128. C lies in a poisoned frame.
namespace inlay::testing {
namespace {

using backend::Fp8Matrix;
using backend::Fp8Sums;
using backend::Grad;
using ops::Fp8Recipe;
using ops::Fp8Role;
using ops::Fp8Settings;
using ops::Fp8Use;

struct Fp8Groups {
  std::vector<std::int32_t> sizes;
  std::int64_t k, n;  // over rows: the extents of C

  std::int64_t groups() const { return std::ssize(sizes); }
  std::int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> result(sizes.size() + 1);
    std::partial_sum(sizes.begin(), sizes.end(), result.begin() + 1);
    return result;
  }
  std::string name() const { return fmt::format("{} groups, {} rows, {} x {}", groups(), rows(), k, n); }
};

// Edges of the tiles (64, 128, 240, 256), of their depth and of the scales' blocks (128).
const std::vector<Fp8Groups>& cases() {
  static const std::vector<Fp8Groups> list = {{{1}, 16, 16},
                                              {{3, 0, 5}, 144, 48},
                                              {{0, 0, 0, 1}, 128, 8},
                                              {{200, 0, 0}, 72, 136},
                                              {{0, 67, 129}, 300, 240},
                                              {{3, 130, 1, 64, 257, 0}, 144, 256},
                                              {{128, 127, 129, 63, 65}, 136, 376},
                                              {{5, 5, 5, 5, 50, 16}, 1000, 264}};
  return list;
}
// More tiles than a GPU has multiprocessors: everyone has several.
const Fp8Groups& many_tiles() {
  static const Fp8Groups large{{300, 290, 0, 310, 280, 300, 270}, 160, 1448};
  return large;
}

std::size_t at(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}

// What Hopper's tensor cores may lose of a sum: they add up 32 products and what was summed before, aligned to the
// largest of them, with 13 bits behind its first. Every 128 terms the sum is added up in fp32, unless it stays there.
class TensorCoreSum {
 public:
  explicit TensorCoreSum(Fp8Sums sums) : stays_(sums == Fp8Sums::fast) {}

  void add(std::int64_t k, double term) {
    if (k / 32 != instruction_) begin(k / 32);
    if (term == 0) return;
    part_ += term;
    largest_ = std::max({largest_, std::abs(term), std::abs(part_)});
    ++addends_;
  }
  double lost() {
    begin(-1);
    return lost_;
  }

 private:
  void begin(std::int64_t instruction) {
    lost_ += 0x1p-13 * largest_ * addends_;
    if (!stays_ && instruction / 4 != instruction_ / 4) part_ = 0;
    largest_ = std::abs(part_);
    addends_ = 1;
    instruction_ = instruction;
  }

  bool stays_;
  std::int64_t instruction_ = 0;
  double part_ = 0, largest_ = 0, lost_ = 0;
  int addends_ = 0;
};

// Of many results together: truncated sums err by the root of their terms, and not by all of them.
struct NormOfErrors {
  double errors = 0, values = 0;
  void add(double actual, double expected) {
    errors += (actual - expected) * (actual - expected);
    values += expected * expected;
  }
  double relative() const { return values == 0 ? 0 : std::sqrt(errors / values); }
};

class BackendGroupedFp8Matmul : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (!backend::grouped_fp8_possible(GetParam())) GTEST_SKIP() << "this device makes no grouped products in fp8";
  }
  // Rows and columns of unlike sizes, so that every scale matters.
  static std::vector<double> numbers(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    auto values = random_values(rows * cols, seed);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      values[static_cast<std::size_t>(i)] *=
          std::exp2(static_cast<double>(i / cols / 3 % 5) - static_cast<double>(i % cols / 50 % 4));
    }
    return values;
  }
  static ops::Fp8Forms forms_of(TestBench& bench, const Fp8Settings& settings, Fp8Role role, Fp8Use use,
                                std::int64_t rows, std::int64_t cols, const std::vector<double>& values) {
    const auto forms = ops::keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, use, rows, cols);
    const View plain = bench.exec.arena().scratch("x", DType::f32, {rows, cols});
    const std::vector<float> floats(values.begin(), values.end());
    if (!floats.empty()) bench.exec.upload(plain, floats.data());
    ops::quantise_fp8(bench.exec, forms, plain);
    bench.exec.synchronize();
    return forms;
  }
  // Of every group, evenly spaced.
  static std::vector<Fp8Matrix> matrices(TestBench& bench, const Fp8Settings& settings, const Fp8Groups& c) {
    std::vector<Fp8Matrix> result;
    for (std::int64_t g = 0; g < c.groups(); ++g) {
      const ScratchScopeOf scope(bench);
      const auto seed = static_cast<std::uint64_t>(100 + g);
      result.push_back(
          forms_of(bench, settings, Fp8Role::weight, Fp8Use::rows, c.n, c.k, numbers(c.n, c.k, seed)).rows);
    }
    return result;
  }
  struct ScratchScopeOf : backend::ScratchScope {
    explicit ScratchScopeOf(TestBench& bench) : ScratchScope(bench.exec.arena()) {}
  };

  // The CPU sums in fp32.
  bool exact() const { return GetParam() == Device::cpu; }
  double norm_bound(Fp8Sums sums, std::int64_t terms) const {
    if (exact()) return 1e-6;
    return 0x1p-13 *
           std::sqrt(static_cast<double>(sums == Fp8Sums::fast ? terms : std::min(terms, backend::fp8_block)));
  }
  static double rounding(DType stored, double value) {
    return std::abs(value) * (stored == DType::bf16 ? 0x1p-8 : 0x1p-23) + 1e-30;
  }

  void check_rows(const Fp8Groups& c, const Fp8Settings& settings, DType out) {
    TestBench bench(GetParam(), std::size_t{128} << 20);
    const std::int64_t rows = c.rows(), pad = 8;
    const Fp8Matrix a =
        forms_of(bench, settings, Fp8Role::gradient, Fp8Use::rows, rows, c.k, numbers(rows, c.k, 1)).rows;
    const std::vector<Fp8Matrix> b = matrices(bench, settings, c);
    const View frame = bench.poisoned(out, {rows + 1, c.n + pad});
    const View offsets = bench.indices(c.offsets());
    const auto multiply = [&](backend::MatmulScale scale) {
      backend::grouped_fp8_matmul(bench.exec, frame.slice_rows(0, rows).slice_cols(0, c.n), a, b, offsets, scale,
                                  settings.sums);
      return bench.read(frame);
    };
    const auto actual = multiply({}), added = multiply({.alpha = 0.5f, .beta = 1.0f});
    const auto left = opened(bench, a);
    const auto begin = c.offsets();
    NormOfErrors norm;
    for (std::size_t g = 0; g < b.size(); ++g) {
      const auto right = opened(bench, b[g]);
      for (std::int64_t i = begin[g]; i < begin[g + 1]; ++i) {
        for (std::int64_t j = 0; j < c.n; ++j) {
          double sum = 0, magnitude = 0;
          TensorCoreSum cores(settings.sums);
          for (std::int64_t k = 0; k < c.k; ++k) {
            const double term = left[at(i, c.k, k)] * right[at(j, c.k, k)];
            sum += term;
            magnitude += std::abs(term);
            if (!exact()) cores.add(k, term);
          }
          const double value = actual[at(i, c.n + pad, j)], allowed = 1e-6 * magnitude + cores.lost();
          norm.add(value, sum);
          ASSERT_NEAR(value, sum, allowed + rounding(out, sum)) << "at " << i << ", " << j;
          // What is added to was rounded before.
          ASSERT_NEAR(added[at(i, c.n + pad, j)], value + 0.5 * sum,
                      allowed + rounding(out, std::abs(value) + std::abs(sum)))
              << "at " << i << ", " << j;
        }
      }
    }
    EXPECT_LE(norm.relative(), norm_bound(settings.sums, c.k) + rounding(out, 1));
    for (std::int64_t i = 0; i <= rows; ++i) {
      for (std::int64_t j = i == rows ? 0 : c.n; j < c.n + pad; ++j) {
        ASSERT_TRUE(std::isnan(actual[at(i, c.n + pad, j)]) && std::isnan(added[at(i, c.n + pad, j)]))
            << "written at " << i << ", " << j;
      }
    }
  }

  void check_over_rows(const Fp8Groups& c, const Fp8Settings& settings) {
    TestBench bench(GetParam(), std::size_t{192} << 20);
    const std::int64_t rows = c.rows(), matrix = c.k * c.n;
    const Fp8Matrix a =
        forms_of(bench, settings, Fp8Role::gradient, Fp8Use::columns, rows, c.k, numbers(rows, c.k, 3)).columns;
    const Fp8Matrix b =
        forms_of(bench, settings, Fp8Role::input, Fp8Use::columns, rows, c.n, numbers(rows, c.n, 4)).columns;
    const auto before = rounded(random_values(c.groups() * matrix, 5), DType::f32);
    const View offsets = bench.indices(c.offsets());
    const View fresh = bench.poisoned(DType::f32, {c.groups(), c.k, c.n});
    const View grown = bench.tensor(DType::f32, {c.groups(), c.k, c.n}, before);
    const std::int64_t without = c.groups() > 1 ? 1 : -1;  // a frozen one
    const auto parts = [&](const View& all) {
      std::vector<View> result;
      for (std::int64_t g = 0; g < c.groups(); ++g) {
        result.push_back(g == without ? View() : all.slice(0, g, g + 1).reshape({c.k, c.n}));
      }
      return result;
    };
    backend::grouped_fp8_matmul_over_rows(bench.exec, parts(fresh), Grad::overwrite, a, b, offsets);
    backend::grouped_fp8_matmul_over_rows(bench.exec, parts(grown), Grad::accumulate, a, b, offsets, 0.5f);
    const auto first = bench.read(fresh), second = bench.read(grown);
    const auto left = opened(bench, a), right = opened(bench, b);
    const auto begin = c.offsets();
    NormOfErrors norm;
    for (std::int64_t g = 0; g < c.groups(); ++g) {
      for (std::int64_t i = 0; i < matrix; ++i) {
        const auto place = static_cast<std::size_t>(g * matrix + i);
        if (g == without) {
          ASSERT_TRUE(std::isnan(first[place]) && second[place] == before[place]) << "a frozen matrix was written";
          continue;
        }
        double sum = 0, magnitude = 0;
        TensorCoreSum cores(Fp8Sums::fp32);
        for (std::int64_t r = begin[static_cast<std::size_t>(g)]; r < begin[static_cast<std::size_t>(g) + 1]; ++r) {
          const double term = left[at(i / c.n, rows, r)] * right[at(i % c.n, rows, r)];
          sum += term;
          magnitude += std::abs(term);
          if (!exact()) cores.add(r, term);
        }
        const double allowed = 1e-6 * magnitude + cores.lost();
        norm.add(first[place], sum);
        ASSERT_NEAR(first[place], sum, allowed + rounding(DType::f32, sum))
            << "group " << g << " at " << i / c.n << ", " << i % c.n;
        ASSERT_NEAR(second[place], before[place] + 0.5 * sum,
                    allowed + 1e-6 * std::abs(before[place]) + rounding(DType::f32, sum))
            << "group " << g << " at " << i / c.n << ", " << i % c.n;
      }
    }
    EXPECT_LE(norm.relative(), norm_bound(Fp8Sums::fp32, rows) + rounding(DType::f32, 1));
  }
};

TEST_P(BackendGroupedFp8Matmul, RowsTimesTheMatrixOfTheirGroup) {
  for (const Fp8Groups& c : cases()) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::row, Fp8Recipe::tensor}) {
      const bool blocks = recipe == Fp8Recipe::block;
      for (const auto& [format, out] : {std::pair{DType::e4m3, DType::bf16}, std::pair{DType::e5m2, DType::f32}}) {
        for (const Fp8Sums sums : {Fp8Sums::fp32, Fp8Sums::fast}) {
          if (blocks && sums == Fp8Sums::fast) continue;
          SCOPED_TRACE(fmt::format("{}, {}, {}, {}{}", c.name(), ops::name_of(recipe), name_of(format), name_of(out),
                                   sums == Fp8Sums::fast ? ", fast sums" : ""));
          check_rows(c, {.recipe = recipe, .gradients = format, .sums = sums}, out);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(BackendGroupedFp8Matmul, SumsOverTheRowsOfEachGroup) {
  for (const Fp8Groups& c : cases()) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::row, Fp8Recipe::tensor}) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", c.name(), ops::name_of(recipe), name_of(format)));
        check_over_rows(c, {.recipe = recipe, .gradients = format});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(BackendGroupedFp8Matmul, ManyTiles) {
  for (const Fp8Settings& settings : {Fp8Settings{}, Fp8Settings{.recipe = Fp8Recipe::tensor, .sums = Fp8Sums::fast}}) {
    SCOPED_TRACE(ops::name_of(settings.recipe));
    check_rows(many_tiles(), settings, DType::bf16);
    check_over_rows(many_tiles(), settings);
  }
}

// Rows that are no numbers ruin what is made of them, and of the blocks that they share scales in, but no other group.
TEST_P(BackendGroupedFp8Matmul, WhatIsNotANumberStaysInItsGroup) {
  const Fp8Groups c{{100, 60, 200, 30}, 144, 136};
  const std::int64_t rows = c.rows(), bad = 165, shared_begin = 128, shared_end = 256;
  TestBench bench(GetParam(), std::size_t{64} << 20);
  const View offsets = bench.indices(c.offsets());
  const std::vector<Fp8Matrix> b = matrices(bench, {}, c);
  const auto run = [&](bool poison) {
    auto dy = numbers(rows, c.k, 6), x = numbers(rows, c.n, 7);
    if (poison) {
      dy[at(bad, c.k, 5)] = std::nan("");
      x[at(bad, c.n, 9)] = std::numeric_limits<double>::infinity();
    }
    const auto left = forms_of(bench, {}, Fp8Role::gradient, Fp8Use::both, rows, c.k, dy);
    const auto right = forms_of(bench, {}, Fp8Role::input, Fp8Use::columns, rows, c.n, x);
    const View y = bench.poisoned(DType::bf16, {rows, c.n}), sums = bench.poisoned(DType::f32, {c.groups(), c.k, c.n});
    backend::grouped_fp8_matmul(bench.exec, y, left.rows, b, offsets);
    std::vector<View> parts;
    for (std::int64_t g = 0; g < c.groups(); ++g) parts.push_back(sums.slice(0, g, g + 1).reshape({c.k, c.n}));
    backend::grouped_fp8_matmul_over_rows(bench.exec, parts, Grad::overwrite, left.columns, right.columns, offsets);
    return std::pair{bench.read(y), bench.read(sums)};
  };
  const auto [y, sums] = run(false);
  const auto [bad_y, bad_sums] = run(true);
  for (std::int64_t i = 0; i < rows * c.n; ++i) {
    const auto place = static_cast<std::size_t>(i);
    ASSERT_TRUE(i / c.n == bad ? std::isnan(bad_y[place]) : bad_y[place] == y[place]) << "row " << i / c.n;
  }
  const auto begin = c.offsets();
  for (std::int64_t g = 0; g < c.groups(); ++g) {
    const auto from = begin[static_cast<std::size_t>(g)], to = begin[static_cast<std::size_t>(g) + 1];
    const bool holds = from <= bad && bad < to, shares = from < shared_end && to > shared_begin;
    for (std::int64_t i = 0; i < c.k * c.n; ++i) {
      const auto place = static_cast<std::size_t>(g * c.k * c.n + i);
      if (holds && (i / c.n == 5 || i % c.n == 9)) {
        ASSERT_TRUE(std::isnan(bad_sums[place])) << "group " << g;
      } else if (!shares) {
        ASSERT_EQ(bad_sums[place], sums[place]) << "group " << g;
      }
    }
  }
}

TEST_P(BackendGroupedFp8Matmul, NoRowsAtAll) {
  TestBench bench(GetParam());
  const auto nothing = [&](Fp8Role role) {
    return ops::keep_fp8(bench.exec, MemoryClass::weights, "x", {}, role, Fp8Use::columns, 0, 16).columns;
  };
  const View offsets = bench.indices({0, 0});
  const View c = bench.poisoned(DType::f32, {16, 16}), kept = bench.tensor(DType::f32, {1, 8}, random_values(8, 1));
  const std::vector<View> out = {c};
  backend::grouped_fp8_matmul_over_rows(bench.exec, out, Grad::overwrite, nothing(Fp8Role::gradient),
                                        nothing(Fp8Role::input), offsets);
  for (const double x : bench.read(c)) ASSERT_EQ(x, 0.0);
  const std::vector<View> more = {bench.tensor(DType::f32, {16, 16}, random_values(256, 2))};
  const auto before = bench.read(more[0]);
  backend::grouped_fp8_matmul_over_rows(bench.exec, more, Grad::accumulate, nothing(Fp8Role::gradient),
                                        nothing(Fp8Role::input), offsets);
  EXPECT_EQ(bench.read(more[0]), before);
  const auto a = ops::keep_fp8(bench.exec, MemoryClass::weights, "x", {}, Fp8Role::input, Fp8Use::rows, 0, 16).rows;
  const std::vector<Fp8Matrix> b = {
      ops::keep_fp8(bench.exec, MemoryClass::weights, "x", {}, Fp8Role::weight, Fp8Use::rows, 8, 16).rows};
  const auto values = bench.read(kept);
  backend::grouped_fp8_matmul(bench.exec, kept.slice_rows(0, 0), a, b, offsets);
  EXPECT_EQ(bench.read(kept), values);
}

// However the rows fall into groups: a plan does not know it.
TEST_P(BackendGroupedFp8Matmul, TheRunTakesWhatThePlanTakes) {
  const std::int64_t rows = 60, k = 48, n = 96;
  const auto peak = [&](backend::Exec exec, const std::vector<std::int32_t>& ends) {
    const auto forms = [&](Fp8Role role, std::int64_t r, std::int64_t c) {
      const auto result = ops::keep_fp8(exec, MemoryClass::weights, "x", {}, role, Fp8Use::both, r, c);
      for (const Fp8Matrix* m : {&result.rows, &result.columns}) {
        exec.fill_zero(m->codes);
        exec.fill_zero(m->scales);
      }
      return result;
    };
    const auto tensor = [&](DType type, Shape shape) {
      return exec.arena().keep(MemoryClass::activations, "operand", type, shape);
    };
    const auto x = forms(Fp8Role::input, rows, k), dy = forms(Fp8Role::gradient, rows, n);
    std::vector<Fp8Matrix> b;
    for (int g = 0; g < 3; ++g) b.push_back(forms(Fp8Role::weight, n, k).rows);
    const View y = tensor(DType::bf16, {rows, n}), offsets = tensor(DType::i32, {4});
    exec.upload(offsets, ends.data());
    const std::vector<View> sums(3, tensor(DType::f32, {n, k}));
    backend::grouped_fp8_matmul(exec, y, x.rows, b, offsets);
    backend::grouped_fp8_matmul_over_rows(exec, sums, Grad::overwrite, dy.columns, x.columns, offsets);
    return exec.arena().peak();
  };
  const std::size_t planned = peak(backend::Exec::planner(GetParam()), {0, 20, 40, 60});
  EXPECT_EQ(peak(backend::Exec::runner(GetParam(), planned), {0, 59, 59, 60}), planned);
  EXPECT_EQ(peak(backend::Exec::runner(GetParam(), planned), {0, 20, 40, 60}), planned);
}

TEST_P(BackendGroupedFp8Matmul, SameBitsRunAfterRun) {
  TestBench bench(GetParam());
  const auto forms = forms_of(bench, {}, Fp8Role::gradient, Fp8Use::columns, 300, 128, numbers(300, 128, 8));
  const auto input = forms_of(bench, {}, Fp8Role::input, Fp8Use::columns, 300, 128, numbers(300, 128, 9));
  const View offsets = bench.indices({0, 170, 300});
  const View first = bench.poisoned(DType::f32, {2, 128, 128}), second = bench.poisoned(DType::f32, {2, 128, 128});
  for (const View& to : {first, second}) {
    const std::vector<View> parts = {to.slice(0, 0, 1).reshape({128, 128}), to.slice(0, 1, 2).reshape({128, 128})};
    backend::grouped_fp8_matmul_over_rows(bench.exec, parts, Grad::overwrite, forms.columns, input.columns, offsets);
  }
  EXPECT_EQ(bench.read(first), bench.read(second));
}

INSTANTIATE_TEST_SUITE_P(All, BackendGroupedFp8Matmul, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
