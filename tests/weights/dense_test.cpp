#include "weights/dense.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/device_tensors.h"

namespace inlay::testing {
namespace {

using backend::Grad;

constexpr std::int64_t token_count = 13, in = 24, out = 17;

class WeightsDense : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  WeightsDense() : bench(std::get<0>(GetParam())), dtype(std::get<1>(GetParam())) {
    parameter.name = "w";
    parameter.shape = {out, in};
    weights = rounded(random_values(out * in, 1), dtype);
    x = rounded(random_values(token_count * in, 2), dtype);
    dy = rounded(random_values(token_count * out, 3), dtype);
    allocate_value(bench.exec, parameter, dtype);
    parameter.value = bench.tensor(dtype, {out, in}, weights);
  }

  // a[rows, n] as op, element by element in double.
  static std::vector<double> product(std::int64_t rows, std::int64_t cols, std::int64_t depth,
                                     const std::function<double(std::int64_t, std::int64_t, std::int64_t)>& term) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < depth; ++k) sum += term(i, j, k);
        result.push_back(sum);
      }
    }
    return result;
  }
  std::vector<double> expected_gradient() const {
    return product(out, in, token_count, [&](auto o, auto i, auto t) {
      return dy[static_cast<std::size_t>(t * out + o)] * x[static_cast<std::size_t>(t * in + i)];
    });
  }

  TestBench bench;
  DType dtype;
  weights::Parameter parameter;
  std::vector<double> weights, x, dy;
};

TEST_P(WeightsDense, ForwardAndBackwardInput) {
  weights::DenseWeight weight(parameter);
  EXPECT_EQ(weight.in_features(), in);
  EXPECT_EQ(weight.out_features(), out);
  View y = bench.poisoned(dtype, {token_count, out}), dx = bench.poisoned(dtype, {token_count, in});
  weight.forward(bench.exec, y, Grad::overwrite, bench.tensor(dtype, {token_count, in}, x));
  weight.backward_input(bench.exec, dx, Grad::overwrite, bench.tensor(dtype, {token_count, out}, dy));
  const auto at = [](const std::vector<double>& m, std::int64_t i) { return m[static_cast<std::size_t>(i)]; };
  EXPECT_LE(relative_error(bench.read(y), product(token_count, out, in,
                                                  [&](auto t, auto o, auto i) {
                                                    return at(x, t * in + i) * at(weights, o * in + i);
                                                  })),
            tolerance(dtype));
  EXPECT_LE(relative_error(bench.read(dx), product(token_count, in, out,
                                                   [&](auto t, auto i, auto o) {
                                                     return at(dy, t * out + o) * at(weights, o * in + i);
                                                   })),
            tolerance(dtype));
}

TEST_P(WeightsDense, TheFirstGradientOverwritesAndLaterOnesAdd) {
  parameter.grad = bench.poisoned(DType::f32, {out, in});
  weights::DenseWeight weight(parameter);
  const View dy_view = bench.tensor(dtype, {token_count, out}, dy), x_view = bench.tensor(dtype, {token_count, in}, x);
  std::vector<double> expected = expected_gradient();
  EXPECT_FALSE(parameter.grad_written());
  weight.accumulate(bench.exec, dy_view, x_view);
  EXPECT_LE(relative_error(bench.read(parameter.grad), expected), 2e-6);
  weight.accumulate(bench.exec, dy_view, x_view);
  for (double& value : expected) value *= 2;
  EXPECT_LE(relative_error(bench.read(parameter.grad), expected), 2e-6);
  parameter.forget_grad();
  weight.accumulate(bench.exec, dy_view, x_view);
  for (double& value : expected) value /= 2;
  EXPECT_LE(relative_error(bench.read(parameter.grad), expected), 2e-6);
}

TEST_P(WeightsDense, AFactorInDeviceMemoryScalesBothGradients) {
  parameter.grad = bench.poisoned(DType::f32, {out, in});
  weights::DenseWeight weight(parameter);
  const View alpha = bench.tensor(DType::f32, {1}, {0.25});
  weight.accumulate(bench.exec, bench.tensor(dtype, {token_count, out}, dy), bench.tensor(dtype, {token_count, in}, x),
                    {.device_alpha = alpha.as<float>()});
  std::vector<double> expected = expected_gradient();
  for (double& value : expected) value *= 0.25;
  EXPECT_LE(relative_error(bench.read(parameter.grad), expected), 2e-6);
}

TEST_P(WeightsDense, AFrozenOneHasNoGradientAndSaysSo) {
  weights::DenseWeight weight(parameter);
  EXPECT_FALSE(weight.trainable());
  EXPECT_EQ(parameter.next_grad_mode(), Grad::skip);
  weight.accumulate(bench.exec, bench.tensor(dtype, {token_count, out}, dy), bench.tensor(dtype, {token_count, in}, x));
  EXPECT_FALSE(parameter.grad_written());
}

INSTANTIATE_TEST_SUITE_P(, WeightsDense,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
