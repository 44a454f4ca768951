#include <gtest/gtest.h>

#include <cmath>

#include "backend/matmul.h"
#include "ops/fused_linear_ce.h"
#include "support/dense_head.h"
#include "support/device_tensors.h"

// The fused loss with another model, and with rules of weights, against fp64 over the logits that it rounds: awkward
// extents, rows without labels, weights, softcaps.
namespace inlay::testing {
namespace {

using ops::DivergenceKind;
using ops::TokenRule;

struct Case {
  DivergenceKind kind = DivergenceKind::forward;
  double beta = 0.3, temperature = 1, weight = 0.7, ce_weight = 0.4, softcap = 0, others_softcap = 0;
  TokenRule rule = TokenRule::none;
  bool weights = false, other = true;
  std::int64_t chunk = 0;
};

class OpsDivergence : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  static constexpr std::int64_t tokens = 29, width = 16, columns = 1003, top = 20;
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  // z = x Wᵀ as the op stores it.
  static std::vector<double> logits(const std::vector<double>& x, const std::vector<double>& w, DType dtype) {
    std::vector<double> z(static_cast<std::size_t>(tokens * columns));
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t v = 0; v < columns; ++v) {
        double sum = 0;
        for (std::int64_t h = 0; h < width; ++h) {
          sum += x[static_cast<std::size_t>(t * width + h)] * w[static_cast<std::size_t>(v * width + h)];
        }
        z[static_cast<std::size_t>(t * columns + v)] = sum;
      }
    }
    return rounded(z, dtype);
  }

  static std::vector<double> log_softmax(const double* z, double softcap, double temperature) {
    std::vector<double> result(z, z + columns);
    double sum = 0;
    for (double& value : result) {
      if (softcap > 0) value = softcap * std::tanh(value / softcap);
      value /= temperature;
      sum += std::exp(value);
    }
    for (double& value : result) value -= std::log(sum);
    return result;
  }

  static double rule_weight(TokenRule rule, const std::vector<double>& log_p, std::int32_t y) {
    if (rule == TokenRule::dft) return std::exp(log_p[static_cast<std::size_t>(y)]);
    if (rule == TokenRule::talr) return std::max(std::exp(log_p[static_cast<std::size_t>(y)] / 3.0), 0.01);
    if (rule != TokenRule::eaft) return 1;
    std::vector<double> sorted = log_p;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    sorted.resize(top);
    double sum = 0, entropy = 0;
    for (const double value : sorted) sum += std::exp(value);
    for (const double value : sorted) entropy -= std::exp(value) / sum * (value - std::log(sum));
    return entropy / std::log(static_cast<double>(top));
  }

  void check(const Case& c) {
    TestBench bench(device());
    const std::vector<double> x = rounded(random_values(tokens * width, 1), dtype()),
                              w = rounded(random_values(columns * width, 2, 0.8), dtype()),
                              u = rounded(random_values(tokens * width, 3), dtype()),
                              o = rounded(random_values(columns * width, 4, 0.8), dtype());
    std::vector<std::int32_t> targets, rows;
    std::vector<double> weights;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool labelled = t % 5 != 3;
      targets.push_back(labelled ? static_cast<std::int32_t>((t * 377) % columns) : -100);
      if (labelled) rows.push_back(static_cast<std::int32_t>(t));
      weights.push_back(c.weights ? 0.25 + 0.1 * static_cast<double>(t % 7) : 1.0);
    }
    const View gradient = bench.tensor(DType::f32, {columns, width}, std::vector<double>(w.size()));
    DenseHead head(bench.tensor(dtype(), {columns, width}, w), gradient);
    DenseHead other(bench.tensor(dtype(), {columns, width}, o), View{});
    const View hidden = bench.tensor(dtype(), {tokens, width}, x), theirs = bench.tensor(dtype(), {tokens, width}, u);
    const View dhidden = bench.poisoned(dtype(), {tokens, width});
    const View loss = bench.tensor(DType::f32, {1}, {0.0}), part = bench.tensor(DType::f32, {1}, {0.0});
    const View temperature = bench.tensor(DType::f32, {1}, {3.0});
    const double divisor = 17;
    ops::LossInputs inputs{.hidden = hidden, .targets = bench.indices(targets), .rows = bench.indices(rows)};
    if (c.weights) inputs.token_weights = bench.tensor(DType::f32, {tokens}, weights);
    if (c.other) {
      inputs.other = {.head = &other, .hidden = theirs, .softcap = static_cast<float>(c.others_softcap)};
    }
    ops::LossOptions options{.softcap = static_cast<float>(c.softcap), .normalizer = divisor, .chunk_tokens = c.chunk};
    options.rule = {.rule = c.rule, .most_likely = top, .temperature = temperature};
    if (c.other) {
      options.divergence = {.kind = c.kind,
                            .beta = static_cast<float>(c.beta),
                            .temperature = static_cast<float>(c.temperature),
                            .weight = static_cast<float>(c.weight),
                            .ce_weight = static_cast<float>(c.ce_weight)};
    }
    ops::fused_linear_ce(bench.exec, head, inputs,
                         {.loss = loss, .divergence = part, .dhidden = dhidden, .head_gradient = true}, options);

    const std::vector<double> z = logits(x, w, dtype()), q_logits = logits(u, o, dtype());
    std::vector<double> dx(x.size()), dw(w.size());
    double expected = 0, expected_part = 0;
    for (const std::int32_t t : rows) {
      const double* row = z.data() + t * columns;
      const std::int32_t y = targets[static_cast<std::size_t>(t)];
      const auto plain = log_softmax(row, c.softcap, 1), p = log_softmax(row, c.softcap, c.temperature);
      const auto q = log_softmax(q_logits.data() + t * columns, c.others_softcap, c.temperature);
      const double given = weights[static_cast<std::size_t>(t)];
      const double ruled = given * rule_weight(c.rule, plain, y), ce_weight = c.other ? c.ce_weight : 1.0;
      double divergence = 0, own = 0;
      for (std::size_t v = 0; v < p.size(); ++v) {
        const double m = std::log(c.beta * std::exp(q[v]) + (1 - c.beta) * std::exp(p[v]));
        if (c.kind == DivergenceKind::forward) divergence += std::exp(q[v]) * (q[v] - p[v]);
        if (c.kind == DivergenceKind::reverse) divergence += std::exp(p[v]) * (p[v] - q[v]);
        if (c.kind == DivergenceKind::jensen_shannon) {
          divergence += c.beta * std::exp(q[v]) * (q[v] - m) + (1 - c.beta) * std::exp(p[v]) * (p[v] - m);
          own += std::exp(p[v]) * (p[v] - m);
        }
      }
      const double scale = c.other ? given * c.weight * c.temperature * c.temperature : 0.0;
      expected += (ce_weight * ruled * -plain[static_cast<std::size_t>(y)] + scale * divergence) / divisor;
      expected_part += scale * divergence / divisor;
      for (std::int64_t v = 0; v < columns; ++v) {
        const auto i = static_cast<std::size_t>(v);
        double slope = std::exp(p[i]) - std::exp(q[i]);
        if (c.kind == DivergenceKind::reverse) slope = std::exp(p[i]) * (p[i] - q[i] - divergence);
        if (c.kind == DivergenceKind::jensen_shannon) {
          const double m = std::log(c.beta * std::exp(q[i]) + (1 - c.beta) * std::exp(p[i]));
          slope = (1 - c.beta) * std::exp(p[i]) * (p[i] - m - own);
        }
        double dz = ce_weight * ruled * (std::exp(plain[i]) - (v == y ? 1 : 0)) + scale / c.temperature * slope;
        if (c.softcap > 0) dz *= 1 - std::pow(std::tanh(row[v] / c.softcap), 2);
        for (std::int64_t h = 0; h < width; ++h) {
          dx[static_cast<std::size_t>(t * width + h)] += dz / divisor * w[static_cast<std::size_t>(v * width + h)];
          dw[static_cast<std::size_t>(v * width + h)] += dz / divisor * x[static_cast<std::size_t>(t * width + h)];
        }
      }
    }
    const double half = dtype() == DType::f32 ? 2e-5 : dtype() == DType::f16 ? 3e-3 : 2e-2;
    EXPECT_NEAR(bench.read(loss)[0], expected, half * std::abs(expected));
    if (c.other) {
      EXPECT_NEAR(bench.read(part)[0], expected_part, half * expected_part);
    }
    EXPECT_LE(relative_error(bench.read(dhidden), dx), half);
    EXPECT_LE(relative_error(bench.read(gradient), dw), half);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, OpsDivergence,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

TEST_P(OpsDivergence, EveryKind) {
  for (const DivergenceKind kind : {DivergenceKind::forward, DivergenceKind::reverse, DivergenceKind::jensen_shannon}) {
    check({.kind = kind});
    check({.kind = kind, .temperature = 2, .weights = true, .chunk = 7});
    check({.kind = kind, .ce_weight = 0, .softcap = 5, .others_softcap = 3});
  }
}

TEST_P(OpsDivergence, EveryRule) {
  for (const TokenRule rule : {TokenRule::dft, TokenRule::eaft, TokenRule::talr}) {
    check({.rule = rule, .other = false});
    check({.softcap = 4, .rule = rule, .weights = true, .other = false, .chunk = 6});
    check({.rule = rule, .weights = true});
  }
}

// A row of which nothing was kept has its cross entropy alone; all is finite.
TEST_P(OpsDivergence, RowsOfWhichNothingIsKnownDivergeFromNothing) {
  TestBench bench(device());
  const std::vector<double> x = rounded(random_values(2 * width, 1), dtype()),
                            w = rounded(random_values(columns * width, 2), dtype());
  DenseHead head(bench.tensor(dtype(), {columns, width}, w), View{});
  const auto run = [&](const std::vector<std::int32_t>& ids, double weight) {
    const View dhidden = bench.poisoned(dtype(), {2, width}), part = bench.tensor(DType::f32, {1}, {0.0});
    View kept = bench.indices(ids);
    ops::fused_linear_ce(bench.exec, head,
                         {.hidden = bench.tensor(dtype(), {2, width}, x),
                          .targets = bench.indices({3, 500}),
                          .other = {.ids = View(kept.data(), DType::i32, {2, 2}),
                                    .log_probs = bench.tensor(DType::f32, {2, 2}, {-0.5, -1.5, -0.1, -2.5})}},
                         {.divergence = part, .dhidden = dhidden},
                         {.normalizer = 2, .divergence = {.weight = static_cast<float>(weight)}});
    return std::pair(bench.read(dhidden), bench.read(part)[0]);
  };
  const auto [gradient, divergence] = run({7, 11, -1, -1}, 1);
  const auto [plain, nothing] = run({-1, -1, -1, -1}, 1);
  EXPECT_EQ(nothing, 0);
  EXPECT_GT(divergence, 0);
  for (std::int64_t h = 0; h < width; ++h) {
    const auto second = static_cast<std::size_t>(width + h);
    EXPECT_EQ(gradient[second], plain[second]);
  }
  EXPECT_GT(relative_error(gradient, plain), 1e-3);
}

}  // namespace
}  // namespace inlay::testing
