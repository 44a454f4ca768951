#include "ops/embedding.h"

#include <algorithm>
#include <numeric>

#include "op_cases.h"
#include "ops/reference/embedding.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

struct EmbeddingCase {
  std::int64_t tokens, vocabulary, width;
};
const EmbeddingCase embedding_cases[] = {{1, 1, 1},        {1, 5, 7},     {9, 4, 5},    {40, 11, 64},
                                         {300, 1000, 288}, {1500, 3, 33}, {5, 50, 4096}};

std::vector<std::int32_t> tokens_for(const EmbeddingCase& c, std::uint64_t seed) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    tokens.push_back(static_cast<std::int32_t>(
        random_below(Philox{seed}, static_cast<std::uint64_t>(t), 0, static_cast<std::uint64_t>(c.vocabulary))));
  }
  return tokens;
}

TokenGroups groups_of(TestBench& bench, const std::vector<std::int32_t>& tokens) {
  std::vector<std::int32_t> order(tokens.size()), starts, ids;
  std::iota(order.begin(), order.end(), 0);
  const auto token = [&](std::int32_t at) { return tokens[static_cast<std::size_t>(at)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return token(a) < token(b); });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!ids.empty() && ids.back() == token(order[i])) continue;
    starts.push_back(static_cast<std::int32_t>(i));
    ids.push_back(token(order[i]));
  }
  starts.push_back(static_cast<std::int32_t>(order.size()));
  return {bench.indices(order), bench.indices(starts), bench.indices(ids)};
}

class OpsEmbedding : public DeviceDType {};

TEST_P(OpsEmbedding, ForwardCopiesRows) {
  for (const EmbeddingCase& c : embedding_cases) {
    SCOPED_TRACE(fmt::format("{} tokens of {} x {}", c.tokens, c.vocabulary, c.width));
    TestBench bench(device());
    const auto tokens = tokens_for(c, 1);
    const auto table = rounded(random_values(c.vocabulary * c.width, 2), dtype());
    std::vector<double> expected(static_cast<std::size_t>(c.tokens * c.width));
    reference::embedding<double>(expected, tokens, table, static_cast<std::size_t>(c.width));
    const View out = bench.poisoned(dtype(), {c.tokens, c.width});
    const Window wide = strided(bench, dtype(), c.tokens, c.width);
    const View table_view = bench.tensor(dtype(), {c.vocabulary, c.width}, table), token_view = bench.indices(tokens);
    embedding_forward(bench.exec, out, token_view, table_view);
    embedding_forward(bench.exec, wide.view, token_view, table_view);
    EXPECT_EQ(bench.read(out), expected);
    EXPECT_EQ(bench.read(wide.view), expected);
    EXPECT_TRUE(surroundings_intact(bench, wide));
  }
}

TEST_P(OpsEmbedding, BackwardSumsEqualTokens) {
  for (const EmbeddingCase& c : embedding_cases) {
    SCOPED_TRACE(fmt::format("{} tokens of {} x {}", c.tokens, c.vocabulary, c.width));
    TestBench bench(device());
    const auto tokens = tokens_for(c, 3);
    const auto dout = rounded(random_values(c.tokens * c.width, 4), dtype());
    const auto before = random_values(c.vocabulary * c.width, 5);
    // The forward pass is a selection, so its transpose adds every row where it was taken from.
    std::vector<double> expected(before.size(), 0.0);
    for (std::size_t i = 0; i < dout.size(); ++i) {
      const std::size_t width = static_cast<std::size_t>(c.width), token = static_cast<std::size_t>(tokens[i / width]);
      expected[token * width + i % width] += dout[i];
    }
    const TokenGroups groups = groups_of(bench, tokens);
    const View fresh = bench.poisoned(DType::f32, {c.vocabulary, c.width});
    const View added = bench.tensor(DType::f32, {c.vocabulary, c.width}, before);
    const View untouched = bench.tensor(DType::f32, {c.vocabulary, c.width}, before);
    const Window d = strided(bench, dtype(), c.tokens, c.width, dout);
    embedding_backward(bench.exec, fresh, Grad::overwrite, bench.tensor(dtype(), {c.tokens, c.width}, dout), groups);
    embedding_backward(bench.exec, added, Grad::accumulate, d.view, groups);
    embedding_backward(bench.exec, untouched, Grad::skip, d.view, groups);
    EXPECT_LT(relative_error(bench.read(fresh), expected), 2e-6);
    EXPECT_LT(relative_error(bench.read(added), sum_of(expected, before)), 2e-6);
    EXPECT_EQ(bench.read(untouched), rounded(before, DType::f32));
    const auto table = bench.read(fresh);
    for (std::size_t i = 0; i < table.size(); ++i) {
      ASSERT_EQ(table[i] == 0.0, expected[i] == 0.0) << "rows of no token, and only they, are cleared";
    }
  }
}

TEST_P(OpsEmbedding, BackwardAgreesWithComplexStep) {
  const EmbeddingCase c{6, 4, 3};
  TestBench bench(device());
  const auto tokens = tokens_for(c, 6);
  const auto table = random_values(c.vocabulary * c.width, 7),
             dout = rounded(random_values(c.tokens * c.width, 8), dtype());
  const auto expected = complex_step(table, sampled(c.vocabulary * c.width), [&](const std::vector<Complex>& point) {
    std::vector<Complex> out(dout.size());
    reference::embedding<Complex>(out, tokens, point, static_cast<std::size_t>(c.width));
    Complex loss = 0;
    for (std::size_t i = 0; i < out.size(); ++i) loss += out[i] * dout[i];
    return loss;
  });
  const View dtable = bench.poisoned(DType::f32, {c.vocabulary, c.width});
  embedding_backward(bench.exec, dtable, Grad::overwrite, bench.tensor(dtype(), {c.tokens, c.width}, dout),
                     groups_of(bench, tokens));
  EXPECT_LT(relative_error(bench.read(dtable), expected), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(All, OpsEmbedding, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
