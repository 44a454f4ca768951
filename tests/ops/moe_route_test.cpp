#include "ops/moe_route.h"

#include <limits>

#include "op_cases.h"
#include "ops/reference/moe.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

struct RouteCase {
  std::int64_t tokens, experts, choices;
};
const RouteCase route_cases[] = {{1, 1, 1}, {1, 4, 4}, {7, 4, 2}, {33, 6, 3}, {130, 32, 4}, {65, 128, 8}, {9, 257, 32}};

std::string name_of(const RouteCase& c) { return fmt::format("{} tokens, {} of {}", c.tokens, c.choices, c.experts); }

// The reference over all tokens.
struct ExpectedRoute {
  std::vector<std::int32_t> experts;
  std::vector<double> weights;
};
ExpectedRoute expected_route(const RouteCase& c, const std::vector<double>& logits, bool over_chosen) {
  ExpectedRoute result;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const auto row = row_of(logits, t, c.experts);
    const auto experts = reference::chosen_experts(row, static_cast<int>(c.choices));
    const auto weights = reference::route_weights(row, experts, over_chosen);
    result.experts.insert(result.experts.end(), experts.begin(), experts.end());
    result.weights.insert(result.weights.end(), weights.begin(), weights.end());
  }
  return result;
}

RouteWeights kind_of(bool over_chosen) {
  return over_chosen ? RouteWeights::softmax_of_chosen : RouteWeights::chosen_of_softmax;
}

class OpsMoeRoute : public DeviceDType {};  // the dtype is that of dlogits

TEST_P(OpsMoeRoute, ForwardMatchesTheReference) {
  for (const RouteCase& c : route_cases) {
    for (const bool over_chosen : {true, false}) {
      SCOPED_TRACE(name_of(c) + (over_chosen ? ", over the chosen" : ", over all"));
      TestBench bench(device());
      const auto logits = rounded(random_values(c.tokens * c.experts, 1, 2.0), DType::f32);
      const ExpectedRoute expected = expected_route(c, logits, over_chosen);
      const View experts = bench.poisoned(DType::i32, {c.tokens, c.choices});
      const View weights = bench.poisoned(DType::f32, {c.tokens, c.choices});
      const Window in = strided(bench, DType::f32, c.tokens, c.experts, logits);
      moe_route(bench.exec, experts, weights, in.view, kind_of(over_chosen));
      EXPECT_EQ(bench.read_indices(experts), expected.experts);
      EXPECT_LT(relative_error(bench.read(weights), expected.weights), tolerance(DType::f32));
    }
  }
}

// Equal logits go by their index; what is not a number is chosen last, and never twice.
TEST_P(OpsMoeRoute, TiesAndNaN) {
  TestBench bench(device());
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const View logits = bench.tensor(
      DType::f32, {4, 4}, {1, 1, 1, 1, 0, 2, 2, 0, nan, 0, nan, nan, -infinite, -infinite, -infinite, -infinite});
  const View experts = bench.poisoned(DType::i32, {4, 3}), weights = bench.poisoned(DType::f32, {4, 3});
  moe_route(bench.exec, experts, weights, logits, RouteWeights::softmax_of_chosen);
  EXPECT_EQ(bench.read_indices(experts), (std::vector<std::int32_t>{0, 1, 2, 1, 2, 0, 1, 0, 2, 0, 1, 2}));
  const auto read = bench.read(weights);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(read[i], 1.0 / 3, 1e-6);
}

TEST_P(OpsMoeRoute, BackwardMatchesComplexStep) {
  for (const RouteCase& c : route_cases) {
    for (const bool over_chosen : {true, false}) {
      for (const bool balanced : {false, true}) {
        SCOPED_TRACE(name_of(c) + (over_chosen ? ", over the chosen" : ", over all") + (balanced ? ", balanced" : ""));
        TestBench bench(device());
        const auto logits = rounded(random_values(c.tokens * c.experts, 2, 2.0), DType::f32);
        const auto dweights = rounded(random_values(c.tokens * c.choices, 3), DType::f32);
        const ExpectedRoute route = expected_route(c, logits, over_chosen);
        // As if another layer had chosen as well: f is over all rows, P has only these tokens' gradient.
        std::vector<double> assigned(static_cast<std::size_t>(c.experts));
        for (std::size_t e = 0; e < assigned.size(); ++e) assigned[e] = static_cast<double>(3 * e % 7);
        for (const std::int32_t e : route.experts) assigned[static_cast<std::size_t>(e)] += 1;
        const double factor = 0.125;

        std::vector<double> expected;
        for (std::int64_t t = 0; t < c.tokens; ++t) {
          const auto row = row_of(logits, t, c.experts);
          const auto chosen = reference::chosen_experts(row, static_cast<int>(c.choices));
          std::vector<std::size_t> all(row.size());
          for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
          const auto exact = complex_step(row, all, [&](const std::vector<Complex>& z) {
            Complex loss = 0;
            const auto weights = reference::route_weights(z, chosen, over_chosen);
            for (std::size_t j = 0; j < chosen.size(); ++j) {
              loss += weights[j] * dweights[static_cast<std::size_t>(t * c.choices) + j];
            }
            if (!balanced) return loss;
            const auto p = reference::softmax(z);
            for (std::size_t e = 0; e < p.size(); ++e) loss += factor * assigned[e] * p[e];
            return loss;
          });
          expected.insert(expected.end(), exact.begin(), exact.end());
        }
        const View dlogits = bench.poisoned(dtype(), {c.tokens, c.experts});
        const View experts = bench.indices(route.experts).reshape({c.tokens, c.choices});
        RouteGrads grads{.dweights = bench.tensor(DType::f32, {c.tokens, c.choices}, dweights)};
        if (balanced) {
          grads.assigned = bench.tensor(DType::i32, {c.experts}, assigned);
          grads.balance_factor = factor;
        }
        moe_route_backward(bench.exec, dlogits, grads, experts, bench.tensor(DType::f32, {c.tokens, c.experts}, logits),
                           kind_of(over_chosen));
        const auto actual = bench.read(dlogits);
        // One expert always counts 1: its gradient is a difference of equal numbers.
        double size = 0, error = 0;
        for (std::size_t i = 0; i < actual.size(); ++i) {
          ASSERT_FALSE(std::isnan(actual[i]));
          size += expected[i] * expected[i];
          error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        }
        EXPECT_LE(std::sqrt(error), tolerance(dtype()) * std::sqrt(size) + 1e-6);
      }
    }
  }
}

TEST_P(OpsMoeRoute, BalanceLossMatchesTheReferenceOverLayers) {
  for (const RouteCase& c : route_cases) {
    SCOPED_TRACE(name_of(c));
    TestBench bench(device());
    std::vector<std::vector<double>> rows;
    const Balance balance{
        bench.tensor(DType::i32, {c.experts}, std::vector<double>(static_cast<std::size_t>(c.experts))),
        bench.tensor(DType::f32, {c.experts}, std::vector<double>(static_cast<std::size_t>(c.experts)))};
    for (const std::uint64_t layer : {11, 12, 13}) {
      const auto logits = rounded(random_values(c.tokens * c.experts, layer, 2.0), DType::f32);
      for (std::int64_t t = 0; t < c.tokens; ++t) rows.push_back(row_of(logits, t, c.experts));
      moe_balance_add(bench.exec, balance, bench.tensor(DType::f32, {c.tokens, c.experts}, logits),
                      bench.indices(expected_route(c, logits, true).experts).reshape({c.tokens, c.choices}));
    }
    const View loss = bench.tensor(DType::f32, {1}, {0.5});
    moe_balance_loss(bench.exec, loss, balance, static_cast<double>(rows.size()), 0.25);
    EXPECT_NEAR(bench.read(loss)[0], 0.5 + 0.25 * reference::balance_loss(rows, static_cast<int>(c.choices)), 4e-6);
  }
}

// The gradient that the factor of moe_route_backward stands for is that of the loss.
TEST(OpsMoeRouteReference, BalanceGradientIsTheDerivative) {
  constexpr int tokens = 5, experts = 4, k = 2;
  const auto logits = random_values(tokens * experts, 4, 2.0);
  const auto split = [](const auto& flat) {
    std::vector<std::vector<typename std::decay_t<decltype(flat)>::value_type>> rows;
    for (int t = 0; t < tokens; ++t) rows.emplace_back(flat.begin() + t * experts, flat.begin() + (t + 1) * experts);
    return rows;
  };
  const auto exact = complex_step(logits, sampled(tokens * experts),
                                  [&](const std::vector<Complex>& z) { return reference::balance_loss(split(z), k); });
  std::vector<double> assigned(experts);
  for (const auto& row : split(logits)) {
    for (const int e : reference::chosen_experts(row, k)) assigned[static_cast<std::size_t>(e)] += 1;
  }
  const double factor = static_cast<double>(experts) / (tokens * tokens);
  std::vector<double> formula;
  for (const auto& row : split(logits)) {
    const auto p = reference::softmax(row);
    double mean = 0;
    for (std::size_t e = 0; e < p.size(); ++e) mean += assigned[e] * p[e];
    for (std::size_t e = 0; e < p.size(); ++e) formula.push_back(factor * p[e] * (assigned[e] - mean));
  }
  EXPECT_LT(relative_error(formula, exact), 1e-12);
}

TEST_P(OpsMoeRoute, RejectsWrongShapes) {
  TestBench bench(device());
  const View logits = bench.poisoned(DType::f32, {3, 4}), experts = bench.poisoned(DType::i32, {3, 5});
  EXPECT_THROW(
      moe_route(bench.exec, experts, bench.poisoned(DType::f32, {3, 5}), logits, RouteWeights::softmax_of_chosen),
      InternalError);
  EXPECT_THROW(moe_route(bench.exec, bench.poisoned(DType::i32, {3, 2}), bench.poisoned(DType::f32, {2, 2}), logits,
                         RouteWeights::softmax_of_chosen),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsMoeRoute, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
