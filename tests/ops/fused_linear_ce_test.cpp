#include <complex>

#include "ops/loss_case.h"

// The fused linear cross entropy over its options, against fp64. Edge cases are in fused_linear_ce_edges_test.cpp.
namespace inlay::testing {

namespace {

using ops::Reduction;
namespace reference = ops::reference;

constexpr Reduction reductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

class OpsFusedLinearCe : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  TestBench bench{device()};
};

INSTANTIATE_TEST_SUITE_P(Devices, OpsFusedLinearCe,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

// Every combination of options, the kind of gradients and the chunk size changing with it.
TEST_P(OpsFusedLinearCe, EveryCombinationOfOptions) {
  int turn = 0;
  for (unsigned features = 0; features < (1u << feature::count); ++features) {
    for (const Reduction reduction : reductions) {
      ++turn;
      check_case(bench,
                 {.tokens = 4,
                  .width = 8,
                  .columns = 8,
                  .features = features,
                  .reduction = reduction,
                  .wanted = static_cast<Wanted>(turn % wanted_count),
                  .chunk_tokens = turn % 4},
                 dtype());
      if (HasFailure()) return;
    }
  }
}

// Every pair of options, with all gradients, on a shape with nothing even about it.
TEST_P(OpsFusedLinearCe, EveryPairOfOptions) {
  constexpr std::int64_t chunks[] = {0, 7, 50, 64, 188};
  int turn = 0;
  for (int a = 0; a < feature::count; ++a) {
    for (int b = a; b < feature::count; ++b) {
      for (const Reduction reduction : reductions) {
        ++turn;
        check_case(bench,
                   {.tokens = 4 * 47,
                    .width = 31,
                    .columns = 123,
                    .features = (1u << a) | (1u << b),
                    .reduction = reduction,
                    .wanted = turn % 2 == 0 ? Wanted::all : Wanted::in_place,
                    .chunk_tokens = chunks[turn % 5]},
                   dtype());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(OpsFusedLinearCe, EveryKindOfGradients) {
  for (int wanted = 0; wanted < wanted_count; ++wanted) {
    for (const unsigned features :
         {0u, feature::ignored, feature::bias | feature::ignored, (1u << feature::count) - 1}) {
      for (const Reduction reduction : reductions) {
        check_case(bench,
                   {.tokens = 9 * 7,
                    .width = 41,
                    .columns = 41,
                    .features = features,
                    .reduction = reduction,
                    .wanted = static_cast<Wanted>(wanted),
                    .chunk_tokens = 16},
                   dtype());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(OpsFusedLinearCe, AMiddlingShape) {
  LossCase shape{.tokens = 8 * 128, .width = 1024, .columns = 4096, .features = feature::ignored};
  shape.chunk_tokens = 300;
  check_case(bench, shape, dtype());
}

// Rows that span several blocks of a cluster on a GPU, ragged at the end; and a row that only just needs two.
TEST_P(OpsFusedLinearCe, LargeVocabularies) {
  for (const std::int64_t columns : {32000, 32003, 128256}) {
    for (const unsigned features : {feature::ignored, feature::ignored | feature::smoothing | feature::softcap |
                                                          feature::z_loss | feature::class_weights | feature::bias}) {
      check_case(bench, {.tokens = 21, .width = 24, .columns = columns, .features = features, .chunk_tokens = 8},
                 dtype());
      if (HasFailure()) return;
    }
  }
}

// The closed form of the reference's gradients against complex steps of its own loss.
TEST(OpsCrossEntropyReference, GradientsByComplexStep) {
  using Complex = std::complex<double>;
  constexpr double step = 1e-30;
  for (unsigned features = 0; features < (1u << feature::count); features += features == 0 ? 1 : 37) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      LossCase c{.tokens = 5, .width = 3, .columns = 4, .features = features | feature::bias, .reduction = reduction};
      const LossProblem made = make_problem(c, DType::f32);
      const auto& real = made.problem;
      reference::CrossEntropyProblem<Complex> problem;
      problem.tokens = real.tokens;
      problem.width = real.width;
      problem.columns = real.columns;
      problem.hidden.assign(real.hidden.begin(), real.hidden.end());
      problem.weight.assign(real.weight.begin(), real.weight.end());
      problem.bias.assign(real.bias.begin(), real.bias.end());
      problem.targets = real.targets;
      problem.class_weights = real.class_weights;
      problem.token_weights = real.token_weights;
      const double upstream = made.upstream.empty() ? 1.0 : made.upstream[0];
      const auto derivative = [&](Complex& variable) {
        variable += Complex(0, step);
        const auto result = reference::cross_entropy(problem, made.options, reference::logits(problem));
        variable -= Complex(0, step);
        return upstream * result.loss[0].imag() / step;
      };
      const auto gradients = reference::backward(
          real, reference::logit_gradient(real, made.options, reference::logits(real), made.upstream));
      std::vector<double> expected, actual;
      const auto collect = [&](std::vector<Complex>& variables, const std::vector<double>& closed) {
        for (std::size_t i = 0; i < variables.size(); ++i) {
          expected.push_back(derivative(variables[i]));
          actual.push_back(closed[i]);
        }
      };
      collect(problem.hidden, gradients.hidden);
      collect(problem.weight, gradients.weight);
      collect(problem.bias, gradients.bias);
      EXPECT_LE(relative_error(actual, expected), 1e-13) << c.str();
    }
  }
}

}  // namespace

}  // namespace inlay::testing
