#include "ops/muon.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "op_cases.h"
#include "ops/adamw.h"
#include "support/fixtures.h"
#include "support/paths.h"

// The truth is fp64, and so is the yardstick: how far PyTorch's own Muon is from it (tests/golden/make_optimizers.py).
namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

nlohmann::json muon_fixture() {
  std::ifstream file(source_folder() / "tests/golden/optimizers.json");
  return nlohmann::json::parse(file).at("muon");
}

// The parameter is the dtype of the momentum.
class OpsMuon : public DeviceDType {};

TEST_P(OpsMuon, MomentumAndNesterovsDirection) {
  TestBench bench(device());
  for (const std::int64_t size : {1, 7, 16, 33, 4096, 70001}) {
    const std::vector<double> g = random_values(size, 1), start = rounded(random_values(size, 2), dtype());
    const View grad = bench.tensor(DType::f32, {size}, g), m = bench.tensor(dtype(), {size}, start);
    const View scale = bench.tensor(DType::f32, {1}, {0.25});
    muon_momentum(bench.exec, grad, m, scale, 0.95f);
    std::vector<double> momentum(start), direction(g);
    for (std::size_t i = 0; i < g.size(); ++i) {
      momentum[i] += (0.25 * g[i] - start[i]) * 0.05;
      direction[i] = 0.25 * g[i] + (momentum[i] - 0.25 * g[i]) * 0.95;
    }
    EXPECT_LE(relative_error(bench.read(m), momentum), tolerance(dtype())) << size;
    EXPECT_LE(relative_error(bench.read(grad), direction), 1e-6) << size;
  }
}

TEST_P(OpsMuon, StepsOfAMatrix) {
  const nlohmann::json cases = muon_fixture();
  for (const auto& matrix : cases.at("matrices")) {
    TestBench bench(device());
    const std::vector<std::int64_t> shape = matrix.at("shape");
    const std::vector<double> start = matrix.at("start"), result = matrix.at("result");
    const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
    const double lr = matrix.at("lr");
    const double scale = matrix.at("scale") == "shape" ? std::sqrt(std::max(1.0, rows / columns))
                                                       : 0.2 * std::sqrt(std::max(rows, columns));
    const Shape extents{shape[0], shape[1]};
    const View value = bench.tensor(DType::f32, extents, start);
    const View m = bench.tensor(dtype(), extents, std::vector<double>(start.size(), 0.0));
    for (const std::vector<double> gradient : matrix.at("gradients")) {
      const View grad = bench.tensor(DType::f32, extents, gradient);
      muon_momentum(bench.exec, grad, m, {}, cases.at("momentum").get<float>());
      orthogonalise(bench.exec, grad, static_cast<float>(-lr * scale));
      add_update(bench.exec, value, {}, grad, {.lr = lr, .weight_decay = cases.at("weight_decay")});
    }
    const std::vector<double> actual = bench.read(value);
    double error = 0, change = 0;
    for (std::size_t i = 0; i < start.size(); ++i) {
      error += (actual[i] - result[i]) * (actual[i] - result[i]);
      change += (result[i] - start[i]) * (result[i] - start[i]);
    }
    EXPECT_LE(std::sqrt(error / change), 2 * matrix.at("error").get<double>() + 1e-4)
        << matrix.at("shape") << " " << matrix.at("scale");
  }
}

// Whatever the gradient's size, all directions move alike: singular values near one, as the polynomial leaves them.
TEST_P(OpsMuon, SingularValuesBecomeAlike) {
  TestBench bench(device());
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{48, 96}, {96, 48}, {130, 70}}) {
    const View x = bench.tensor(DType::f32, {rows, columns}, random_values(rows * columns, 3));
    orthogonalise(bench.exec, x, 1.0f);
    const std::vector<double> q = bench.read(x);
    double squares = 0;  // Σ s² over min(rows, columns) singular values
    for (const double v : q) squares += v * v;
    const double typical = std::sqrt(squares / static_cast<double>(std::min(rows, columns)));
    EXPECT_GT(typical, 0.7);
    EXPECT_LT(typical, 1.2);
  }
}

TEST_P(OpsMuon, ZerosStayZerosAndTheSameInputGivesTheSameBits) {
  TestBench bench(device());
  const View zeros = bench.tensor(DType::f32, {9, 5}, std::vector<double>(45, 0.0));
  orthogonalise(bench.exec, zeros, 1.0f);
  EXPECT_EQ(bench.read(zeros), std::vector<double>(45, 0.0));
  std::vector<std::vector<double>> results;
  for (int i = 0; i < 2; ++i) {
    const View x = bench.tensor(DType::f32, {65, 33}, random_values(65 * 33, 4));
    orthogonalise(bench.exec, x, -0.5f);
    results.push_back(bench.read(x));
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(, OpsMuon, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
