#include "fp8_forms.h"
#include "moe_cases.h"
#include "op_cases.h"
#include "ops/elementwise.h"
#include "ops/expert_glu.h"

// What writes operands of experts' products gives the very codes that the plain ops and then quantise_fp8 give.
namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

class OpsExpertsFp8 : public DeviceDType {
 protected:
  View tensor(TestBench& bench, const Shape& shape, std::uint64_t seed, double scale = 1.0) const {
    return bench.tensor(dtype(), shape, rounded(random_values(shape.size(), seed, scale), dtype()));
  }
  static std::vector<Fp8Settings> settings() {
    return {{.recipe = Fp8Recipe::block},
            {.recipe = Fp8Recipe::block, .gradients = DType::e5m2},
            {.recipe = Fp8Recipe::row},
            {.recipe = Fp8Recipe::tensor}};
  }
  // Sums in another order.
  static void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
    EXPECT_LE(relative_error(actual, expected), 1e-5);
  }
};

TEST_P(OpsExpertsFp8, RowsAreGatheredAndThenRounded) {
  for (const MoeCase& c : moe_cases()) {
    for (const std::int64_t width : {8, 16, 130, 272}) {
      if (c.pairs() * width > 400000) continue;
      for (const Fp8Settings& setting : settings()) {
        SCOPED_TRACE(fmt::format("{}, {} wide, {}", c.name, width, name_of(setting.recipe)));
        TestBench bench(device(), std::size_t{64} << 20);
        const MoeOrder order(bench, c);
        const View from = tensor(bench, {c.tokens, width}, 1), bias = tensor(bench, {c.experts, width}, 2);
        const auto forms = [&](Fp8Use use) {
          return poisoned_forms(bench, setting, Fp8Role::gradient, use, c.pairs(), width);
        };
        const View plain = bench.poisoned(dtype(), {c.pairs(), width}), room = bench.poisoned(dtype(), plain.shape());
        moe_gather(bench.exec, plain, from, order.order);
        for (const Fp8Use use : {Fp8Use::both, Fp8Use::rows, Fp8Use::columns}) {
          const Fp8Forms expected = forms(use), actual = forms(use);
          quantise_fp8(bench.exec, expected, plain);
          moe_gather_fp8(bench.exec, actual, room, from, order.order);
          expect_same_forms(bench, actual, expected);
        }
        const Combine combine{.bias = bias, .experts = order.experts};
        const Fp8Forms expected = forms(Fp8Use::both), actual = forms(Fp8Use::both);
        const View dweights = bench.poisoned(DType::f32, {c.tokens, c.choices}),
                   dweights8 = bench.poisoned(DType::f32, {c.tokens, c.choices});
        moe_combine_backward(bench.exec, plain, dweights, from, combine, order.order);
        quantise_fp8(bench.exec, expected, plain);
        moe_combine_backward_fp8(bench.exec, actual, room, dweights8, from, combine, order.order);
        expect_same_forms(bench, actual, expected);
        EXPECT_EQ(bench.read(dweights8), bench.read(dweights));
      }
    }
  }
}

TEST_P(OpsExpertsFp8, BiasGradientsFromTokensAreThoseOfTheirRows) {
  for (const MoeCase& c : moe_cases()) {
    SCOPED_TRACE(c.name);
    constexpr std::int64_t width = 40;
    TestBench bench(device(), std::size_t{64} << 20);
    const MoeOrder order(bench, c);
    const View from = tensor(bench, {c.tokens, width}, 1), rows = bench.poisoned(dtype(), {c.pairs(), width});
    const View weights = bench.tensor(DType::f32, {c.tokens, c.choices}, random_values(c.pairs(), 2));
    moe_gather(bench.exec, rows, from, order.order);
    const View by_rows = bench.poisoned(DType::f32, {c.experts, width}),
               by_tokens = bench.poisoned(DType::f32, by_rows.shape());
    for (const Grad mode : {Grad::overwrite, Grad::accumulate}) {
      moe_bias_backward(bench.exec, by_rows, mode, rows, weights, order.order);
      moe_bias_backward(bench.exec, by_tokens, mode, from, weights, order.order, RowsOf::tokens);
      EXPECT_EQ(bench.read(by_tokens), bench.read(by_rows));
    }
  }
}

// Tiles that lie in one expert, in several, and over the edges; gradients with an odd number of tiles.
TEST_P(OpsExpertsFp8, TheActivationInOnePass) {
  for (const MoeCase& c : moe_cases()) {
    for (const Glu kind : {Glu::silu, Glu::clamped}) {
      for (const std::int64_t width : {16, 128, 144, 192, 256}) {
        if (c.pairs() * width > 400000) continue;
        for (const bool biased : {false, true}) {
          for (const Fp8Settings& setting : settings()) {
            SCOPED_TRACE(fmt::format("{}, {} wide, {}, {}{}", c.name, width, kind == Glu::silu ? "silu" : "clamped",
                                     name_of(setting.recipe), biased ? ", biases" : ""));
            TestBench bench(device(), std::size_t{64} << 20);
            const MoeOrder order(bench, c);
            const View gate_up = tensor(bench, {c.pairs(), 2 * width}, 1, 4.0),
                       dact = tensor(bench, {c.pairs(), width}, 2);
            const View weights =
                bench.tensor(DType::f32, {c.tokens, c.choices}, rounded(random_values(c.pairs(), 4), DType::f32));
            const ExpertRows rows{.kind = kind,
                                  .bias = biased ? tensor(bench, {c.experts, 2 * width}, 3) : View(),
                                  .experts = order.experts,
                                  .order = order.order};
            const auto forms = [&](Fp8Role role, Fp8Use use, std::int64_t cols) {
              return poisoned_forms(bench, setting, role, use, c.pairs(), cols);
            };
            const View act = bench.poisoned(dtype(), {c.pairs(), width}),
                       dgate_up = bench.poisoned(dtype(), {c.pairs(), 2 * width});
            for (const Fp8Use use : {Fp8Use::rows, Fp8Use::both}) {
              const Fp8Forms expected = forms(Fp8Role::input, use, width), actual = forms(Fp8Role::input, use, width);
              expert_glu_forward(bench.exec, act, gate_up, rows);
              quantise_fp8(bench.exec, expected, act);
              expert_glu_forward_fp8(bench.exec, actual, gate_up, rows);
              expect_same_forms(bench, actual, expected);
            }

            const auto before = rounded(random_values(c.pairs(), 5), DType::f32);
            const auto dbias_before = rounded(random_values(c.experts * 2 * width, 6), DType::f32);
            const auto sums = [&] {
              return std::pair(bench.tensor(DType::f32, {c.tokens, c.choices}, before),
                               bench.tensor(DType::f32, {c.experts, 2 * width}, dbias_before));
            };
            for (const auto& [use, mode] :
                 {std::pair(Fp8Use::both, Grad::overwrite), std::pair(Fp8Use::rows, Grad::accumulate)}) {
              const auto make = [&, use = use] {
                return ExpertGluForms{
                    .dgate_up = forms(Fp8Role::gradient, use, 2 * width),
                    .act = use == Fp8Use::both ? forms(Fp8Role::input, Fp8Use::columns, width) : Fp8Forms()};
              };
              const auto [dweights, dbias] = sums();
              const auto [dweights8, dbias8] = sums();
              const ExpertGluForms expected = make();
              ExpertGluForms actual = make();
              expert_glu_backward(bench.exec, {.dgate_up = dgate_up, .act = act, .dweights = dweights}, dact, gate_up,
                                  weights, rows);
              quantise_fp8(bench.exec, expected.dgate_up, dgate_up);
              quantise_fp8(bench.exec, expected.act, act);
              moe_bias_backward(bench.exec, dbias, mode, dgate_up, {}, order.order);
              const View gate_up_room = bench.poisoned(dtype(), gate_up.shape()),
                         dact_room = bench.poisoned(dtype(), dact.shape());
              cast(bench.exec, gate_up_room, gate_up);
              cast(bench.exec, dact_room, dact);
              if (biased) actual.dbias = dbias8, actual.dbias_mode = mode;
              expert_glu_backward_fp8(bench.exec, actual, {.dweights = dweights8}, dact_room, gate_up_room, weights,
                                      rows);
              expect_same_forms(bench, actual.dgate_up, expected.dgate_up);
              expect_same_forms(bench, actual.act, expected.act);
              expect_near(bench.read(dweights8), bench.read(dweights));
              if (biased) {
                expect_near(bench.read(dbias8), bench.read(dbias));
              } else {
                EXPECT_EQ(bench.read(dbias8), dbias_before);
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpsExpertsFp8, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
