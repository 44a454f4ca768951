#include "ops/expert_glu.h"

#include "moe_cases.h"
#include "op_cases.h"
#include "ops/reference/moe.h"
#include "ops/reference/swiglu.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

template <class S>
S activation(Glu kind, const S& gate, const S& up) {
  return kind == Glu::silu ? reference::swiglu(gate, up) : reference::clamped_glu(gate, up);
}

// Where gate and up of activation i stand.
std::pair<std::int64_t, std::int64_t> columns(Glu kind, std::int64_t width, std::int64_t i) {
  return kind == Glu::silu ? std::pair{i, width + i} : std::pair{2 * i, 2 * i + 1};
}

struct Expected {
  std::vector<double> act, weighted, dgate_up, dweights;
};

Expected expected_glu(Glu kind, const MoeCase& c, const std::vector<std::int32_t>& pairs, std::int64_t width,
                      const std::vector<double>& gate_up, const std::vector<double>& bias,
                      const std::vector<double>& dact, const std::vector<double>& weights) {
  constexpr double h = 1e-40;
  Expected r{std::vector<double>(dact.size()), std::vector<double>(dact.size()), std::vector<double>(gate_up.size()),
             std::vector<double>(weights.size())};
  for (std::size_t row = 0; row < pairs.size(); ++row) {
    const auto pair = static_cast<std::size_t>(pairs[row]);
    for (std::int64_t i = 0; i < width; ++i) {
      const auto [gate_at, up_at] = columns(kind, width, i);
      const auto in = [&](std::int64_t column) {
        const auto at = row * static_cast<std::size_t>(2 * width) + static_cast<std::size_t>(column);
        const auto add = static_cast<std::size_t>(c.chosen[pair] * 2 * width + column);
        return gate_up[at] + (bias.empty() ? 0.0 : bias[add]);
      };
      const double g = in(gate_at), u = in(up_at);
      const std::size_t out = row * static_cast<std::size_t>(width) + static_cast<std::size_t>(i);
      const std::size_t base = row * static_cast<std::size_t>(2 * width);
      r.act[out] = activation(kind, g, u);
      r.weighted[out] = weights[pair] * r.act[out];
      r.dweights[pair] += dact[out] * r.act[out];
      const double upstream = weights[pair] * dact[out];
      r.dgate_up[base + static_cast<std::size_t>(gate_at)] =
          upstream * activation(kind, Complex(g, h), Complex(u)).imag() / h;
      r.dgate_up[base + static_cast<std::size_t>(up_at)] =
          upstream * activation(kind, Complex(g), Complex(u, h)).imag() / h;
    }
  }
  return r;
}

class OpsExpertGlu : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed, double scale = 1.0) const {
    return rounded(random_values(count, seed, scale), dtype());
  }
};

TEST_P(OpsExpertGlu, ForwardAndBackwardMatchComplexStep) {
  for (const MoeCase& c : moe_cases()) {
    for (const Glu kind : {Glu::silu, Glu::clamped}) {
      for (const std::int64_t width : {1, 5, 17, 40, 288}) {
        if (c.pairs() * width > 200000) continue;
        for (const bool biased : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, {} wide, {}{}", c.name, width, kind == Glu::silu ? "silu" : "clamped",
                                   biased ? ", biases" : ""));
          TestBench bench(device());
          const MoeOrder order(bench, c);
          // A scale of 4 sends a tenth of the numbers over the limits of the clamped kind.
          const auto gate_up = values(c.pairs() * 2 * width, 1, 4.0), dact = values(c.pairs() * width, 2);
          const auto bias = biased ? values(c.experts * 2 * width, 3) : std::vector<double>();
          const auto weights = rounded(random_values(c.pairs(), 4), DType::f32);
          const auto before = rounded(random_values(c.pairs(), 5), DType::f32);
          const Expected expected =
              expected_glu(kind, c, bench.read_indices(order.order.pairs), width, gate_up, bias, dact, weights);
          ExpertRows rows{.kind = kind, .experts = order.experts, .order = order.order};
          if (biased) rows.bias = bench.tensor(dtype(), {c.experts, 2 * width}, bias);
          const View in = bench.tensor(dtype(), {c.pairs(), 2 * width}, gate_up);
          const View d = bench.tensor(dtype(), {c.pairs(), width}, dact);
          const View act = bench.poisoned(dtype(), {c.pairs(), width});
          expert_glu_forward(bench.exec, act, in, rows);
          EXPECT_LT(relative_error(bench.read(act), expected.act), tolerance(dtype()));

          const View weight_view = bench.tensor(DType::f32, {c.tokens, c.choices}, weights);
          const View dweights = bench.tensor(DType::f32, weight_view.shape(), before);
          const auto right = [&](const View& dgate_up, const View& weighted) {
            EXPECT_LT(relative_error(bench.read(dgate_up), expected.dgate_up), tolerance(dtype()));
            EXPECT_LT(relative_error(bench.read(weighted), expected.weighted), tolerance(dtype()));
          };
          const View dgate_up = bench.poisoned(dtype(), in.shape()), weighted = bench.poisoned(dtype(), d.shape());
          expert_glu_backward(bench.exec, {dgate_up, weighted, dweights}, d, in, weight_view, rows);
          right(dgate_up, weighted);
          EXPECT_LT(relative_error(bench.read(dweights), sum_of(before, expected.dweights)), 4e-6);

          const Window wide_in = strided(bench, dtype(), c.pairs(), 2 * width, gate_up),
                       wide_d = strided(bench, dtype(), c.pairs(), width, dact);
          expert_glu_backward(bench.exec, {wide_in.view, wide_d.view, dweights}, wide_d.view, wide_in.view, weight_view,
                              rows);  // in place, strided
          right(wide_in.view, wide_d.view);
          EXPECT_TRUE(surroundings_intact(bench, wide_in) && surroundings_intact(bench, wide_d));
        }
      }
    }
  }
}

// At the limits themselves the numbers still move; beyond them they do not.
TEST_P(OpsExpertGlu, LimitsOfTheClampedKind) {
  TestBench bench(device());
  const MoeCase c = moe_case("one row", 1, 1, 1, 1);
  const MoeOrder order(bench, c);
  const View in = bench.tensor(dtype(), {1, 12}, {7, 1, 7.5, 1, 1, 7, 1, -7, 1, 7.5, 1, -7.5});
  const View d = bench.tensor(dtype(), {1, 6}, {1, 1, 1, 1, 1, 1}), out = bench.poisoned(dtype(), {1, 12});
  const View act = bench.poisoned(dtype(), {1, 6}), dweights = bench.tensor(DType::f32, {1, 1}, {0});
  expert_glu_backward(bench.exec, {out, act, dweights}, d, in, bench.tensor(DType::f32, {1, 1}, {1}),
                      {.kind = Glu::clamped, .experts = order.experts, .order = order.order});
  const auto gradient = bench.read(out);
  EXPECT_NE(gradient[0], 0) << "gate at its limit";
  EXPECT_EQ(gradient[2], 0) << "gate beyond it";
  EXPECT_NE(gradient[5], 0) << "up at its limit";
  EXPECT_NE(gradient[7], 0) << "up at its lower limit";
  EXPECT_EQ(gradient[9], 0) << "up beyond it";
  EXPECT_EQ(gradient[11], 0) << "up below it";
}

INSTANTIATE_TEST_SUITE_P(All, OpsExpertGlu, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
