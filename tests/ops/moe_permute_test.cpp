#include "ops/moe_permute.h"

#include <algorithm>

#include "moe_cases.h"
#include "op_cases.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

class OpsMoePermute : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed) const {
    return rounded(random_values(count, seed), dtype());
  }
};

TEST_P(OpsMoePermute, SortIsStable) {
  for (const MoeCase& c : moe_cases()) {
    SCOPED_TRACE(c.name);
    TestBench bench(device());
    const MoeOrder order(bench, c);
    std::vector<std::int32_t> pairs(static_cast<std::size_t>(c.pairs())), rows(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<std::int32_t>(i);
    std::stable_sort(pairs.begin(), pairs.end(), [&](std::int32_t a, std::int32_t b) {
      return c.chosen[static_cast<std::size_t>(a)] < c.chosen[static_cast<std::size_t>(b)];
    });
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(c.experts) + 1);
    for (const std::int32_t e : c.chosen) ++offsets[static_cast<std::size_t>(e) + 1];
    for (std::size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
    for (std::size_t row = 0; row < pairs.size(); ++row) {
      rows[static_cast<std::size_t>(pairs[row])] = static_cast<std::int32_t>(row);
    }
    EXPECT_EQ(bench.read_indices(order.order.offsets), offsets);
    EXPECT_EQ(bench.read_indices(order.order.pairs), pairs);
    EXPECT_EQ(bench.read_indices(order.order.rows), rows);
  }
}

TEST_P(OpsMoePermute, GatherAndCombine) {
  for (const MoeCase& c : moe_cases()) {
    for (const std::int64_t width : {1, 7, 64, 200}) {
      SCOPED_TRACE(fmt::format("{}, {} wide", c.name, width));
      TestBench bench(device());
      const MoeOrder order(bench, c);
      const auto x = values(c.tokens * width, 1), y = values(c.pairs() * width, 2), bias = values(c.experts * width, 3);
      const auto residual = values(c.tokens * width, 4);
      const auto weights = rounded(random_values(c.pairs(), 5), DType::f32);
      const Window from = strided(bench, dtype(), c.tokens, width, x);
      const View to = bench.poisoned(dtype(), {c.pairs(), width});
      moe_gather(bench.exec, to, from.view, order.order);
      const auto gathered = bench.read(to);

      const View out = bench.tensor(dtype(), {c.tokens, width}, residual), bare = bench.poisoned(dtype(), out.shape());
      const View rows_of_y = bench.tensor(dtype(), {c.pairs(), width}, y);
      moe_combine(bench.exec, out,
                  {.y = rows_of_y,
                   .weights = bench.tensor(DType::f32, {c.tokens, c.choices}, weights),
                   .bias = bench.tensor(dtype(), {c.experts, width}, bias),
                   .experts = order.experts,
                   .residual = out},
                  order.order);
      moe_combine(bench.exec, bare, {.y = rows_of_y}, order.order);

      const auto row_of_pair = bench.read_indices(order.order.rows);
      std::vector<double> expected = residual, sums(residual.size());
      for (std::int64_t pair = 0; pair < c.pairs(); ++pair) {
        const std::int64_t t = pair / c.choices, row = row_of_pair[static_cast<std::size_t>(pair)];
        for (std::int64_t i = 0; i < width; ++i) {
          ASSERT_EQ(gathered[static_cast<std::size_t>(row * width + i)], x[static_cast<std::size_t>(t * width + i)]);
          const double value = y[static_cast<std::size_t>(row * width + i)];
          const auto e = c.chosen[static_cast<std::size_t>(pair)];
          sums[static_cast<std::size_t>(t * width + i)] += value;
          expected[static_cast<std::size_t>(t * width + i)] +=
              weights[static_cast<std::size_t>(pair)] * (value + bias[static_cast<std::size_t>(e * width + i)]);
        }
      }
      EXPECT_LT(relative_error(bench.read(out), expected), tolerance(dtype()));
      EXPECT_LT(relative_error(bench.read(bare), sums), tolerance(dtype()));
    }
  }
}

TEST_P(OpsMoePermute, CombineBackward) {
  for (const MoeCase& c : moe_cases()) {
    for (const std::int64_t width : {1, 7, 64, 200}) {
      SCOPED_TRACE(fmt::format("{}, {} wide", c.name, width));
      TestBench bench(device());
      const MoeOrder order(bench, c);
      const auto dout = values(c.tokens * width, 1), bias = values(c.experts * width, 2);
      const View d = bench.tensor(dtype(), {c.tokens, width}, dout);
      const View dy = bench.poisoned(dtype(), {c.pairs(), width});
      const View with = bench.poisoned(DType::f32, {c.tokens, c.choices}),
                 without = bench.poisoned(DType::f32, with.shape());
      moe_combine_backward(bench.exec, dy, without, d, {}, order.order);
      moe_combine_backward(bench.exec, dy, with, d,
                           {.bias = bench.tensor(dtype(), {c.experts, width}, bias), .experts = order.experts},
                           order.order);
      const auto rows = bench.read_indices(order.order.rows);
      const auto spread = bench.read(dy);
      std::vector<double> expected(static_cast<std::size_t>(c.pairs()));
      for (std::size_t pair = 0; pair < expected.size(); ++pair) {
        for (std::int64_t i = 0; i < width; ++i) {
          const double value = dout[pair / static_cast<std::size_t>(c.choices) * static_cast<std::size_t>(width) +
                                    static_cast<std::size_t>(i)];
          ASSERT_EQ(spread[static_cast<std::size_t>(rows[pair] * width + i)], value);
          expected[pair] += value * bias[static_cast<std::size_t>(c.chosen[pair] * width + i)];
        }
      }
      EXPECT_LT(relative_error(bench.read(with), expected), 2e-6);
      for (const double x : bench.read(without)) ASSERT_EQ(x, 0.0);
    }
  }
}

TEST_P(OpsMoePermute, BiasGradientsOfEachExpert) {
  for (const MoeCase& c : moe_cases()) {
    for (const std::int64_t width : {1, 7, 64, 300}) {
      SCOPED_TRACE(fmt::format("{}, {} wide", c.name, width));
      TestBench bench(device());
      const MoeOrder order(bench, c);
      const auto dy = values(c.pairs() * width, 1);
      const auto weights = rounded(random_values(c.pairs(), 2), DType::f32);
      const auto before = rounded(random_values(c.experts * width, 3), DType::f32);
      const View d = bench.tensor(dtype(), {c.pairs(), width}, dy);
      const View plain = bench.poisoned(DType::f32, {c.experts, width});
      const View weighted = bench.tensor(DType::f32, plain.shape(), before);
      moe_bias_backward(bench.exec, plain, Grad::overwrite, d, {}, order.order);
      moe_bias_backward(bench.exec, weighted, Grad::accumulate, d,
                        bench.tensor(DType::f32, {c.tokens, c.choices}, weights), order.order);
      std::vector<double> sums(before.size()), expected = before;
      const auto pairs = bench.read_indices(order.order.pairs);
      for (std::size_t row = 0; row < pairs.size(); ++row) {
        const auto pair = static_cast<std::size_t>(pairs[row]);
        for (std::int64_t i = 0; i < width; ++i) {
          const double value = dy[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
          const auto at = static_cast<std::size_t>(c.chosen[pair] * width + i);
          sums[at] += value;
          expected[at] += value * weights[pair];
        }
      }
      EXPECT_LT(relative_error(bench.read(plain), sums), 2e-6);
      EXPECT_LT(relative_error(bench.read(weighted), expected), 2e-6);
    }
  }
}

TEST_P(OpsMoePermute, NoTokensAtAll) {
  TestBench bench(device());
  const ExpertOrder order{bench.poisoned(DType::i32, {4}), bench.poisoned(DType::i32, {1}).slice_rows(0, 0),
                          bench.poisoned(DType::i32, {1, 2}).slice_rows(0, 0)};
  moe_sort(bench.exec, order, order.rows);
  EXPECT_EQ(bench.read_indices(order.offsets), (std::vector<std::int32_t>{0, 0, 0, 0}));
  const View dbias = bench.poisoned(DType::f32, {3, 5}), nothing = bench.poisoned(dtype(), {1, 5}).slice_rows(0, 0);
  moe_bias_backward(bench.exec, dbias, Grad::overwrite, nothing, {}, order);
  for (const double x : bench.read(dbias)) ASSERT_EQ(x, 0.0);
}

INSTANTIATE_TEST_SUITE_P(All, OpsMoePermute, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
