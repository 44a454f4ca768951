#include "ops/schedule_free.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "op_cases.h"
#include "ops/adamw.h"
#include "support/fixtures.h"
#include "support/paths.h"

// Against the authors' own code in fp64 (tests/golden/make_schedule_free.py).
namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

// The parameter is the dtype of the weight; a bf16 one has a low half.
class OpsScheduleFree : public DeviceDType {
 protected:
  ScheduleFreeState state(TestBench& bench, const Shape& shape, const std::vector<double>& start) const {
    ScheduleFreeState made{.z = bench.poisoned(DType::f32, shape),
                           .v = bench.tensor(DType::f32, shape, std::vector<double>(start.size(), 0.0))};
    if (dtype() == DType::f32) {
      made.value = bench.tensor(DType::f32, shape, start);
    } else {
      made.value = bench.poisoned(DType::bf16, shape);
      made.low = bench.poisoned(DType::i16, shape);
      split_master(bench.exec, made.value, made.low, bench.tensor(DType::f32, shape, start));
    }
    return made;
  }
  std::vector<double> master(TestBench& bench, const ScheduleFreeState& state) const {
    if (dtype() == DType::f32) return bench.read(state.value);
    const View whole = bench.poisoned(DType::f32, state.value.shape());
    join_master(bench.exec, whole, state.value, state.low);
    return bench.read(whole);
  }
};

TEST_P(OpsScheduleFree, StepsAreThoseOfItsAuthors) {
  std::ifstream file(source_folder() / "tests/golden/schedule_free.json");
  const nlohmann::json expected = nlohmann::json::parse(file), matrix = expected.at("matrix");
  const Shape shape{matrix.at("shape")[0], matrix.at("shape")[1]};
  TestBench bench(device());
  const ScheduleFreeState state = this->state(bench, shape, matrix.at("start"));
  ScheduleFreeSettings settings{.beta1 = expected.at("beta1"),
                                .beta2 = expected.at("beta2"),
                                .eps = expected.at("eps"),
                                .weight_decay = expected.at("weight_decay"),
                                .step = 0};
  double highest = 0, squares = 0;
  for (std::size_t i = 0; i < matrix.at("rates").size(); ++i) {
    settings.lr = matrix.at("rates")[i];
    highest = std::max(highest, settings.lr);
    squares += highest * highest;
    settings.share = highest * highest / squares;
    ++settings.step;
    schedule_free_begin(bench.exec, state, settings.beta1, settings.step == 1);
    // Halved, and doubled again by the factor.
    std::vector<double> gradient = matrix.at("gradients")[i];
    for (double& g : gradient) g /= 2;
    schedule_free_step(bench.exec, state, bench.tensor(DType::f32, shape, gradient), bench.tensor(DType::f32, {1}, {2}),
                       settings);
    EXPECT_LE(relative_error(master(bench, state), matrix.at("x")[i]), 1e-6) << i;
    EXPECT_LE(relative_error(bench.read(state.z), matrix.at("z")[i]), 1e-6) << i;
  }
}

// Sizes that vectors do not divide, and whole ones: element by element as in fp64.
TEST_P(OpsScheduleFree, AnySize) {
  for (const std::int64_t size : {1, 7, 16, 33, 4096, 70001}) {
    TestBench bench(device());
    const std::vector<double> start = rounded(random_values(size, 1), DType::f32);
    const std::vector<double> g = rounded(random_values(size, 2), DType::f32);
    const ScheduleFreeState state = this->state(bench, {size}, start);
    const ScheduleFreeSettings first{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.2};
    ScheduleFreeSettings second = first;
    second.step = 2, second.share = 0.5;
    const View grad = bench.tensor(DType::f32, {size}, g);
    schedule_free_begin(bench.exec, state, 0.8, true);
    schedule_free_step(bench.exec, state, grad, {}, first);
    schedule_free_begin(bench.exec, state, 0.8, false);
    schedule_free_step(bench.exec, state, grad, {}, second);
    std::vector<double> x = start, z = start;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // The second moment is that of a constant, so with its bias corrected it is its square.
      const double direction = g[i] / (std::abs(g[i]) + 1e-6);
      z[i] -= 0.1 * (direction + 0.2 * start[i]);
      x[i] = z[i];
      const double y = 0.8 * x[i] + 0.2 * z[i];
      z[i] -= 0.1 * (direction + 0.2 * y);
      x[i] += (z[i] - x[i]) * 0.5;
    }
    EXPECT_LE(relative_error(master(bench, state), x), 1e-6) << size;
    EXPECT_LE(relative_error(bench.read(state.z), z), 1e-6) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(, OpsScheduleFree,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::ops
