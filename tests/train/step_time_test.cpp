#include "train/step_time.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/imaginary_model.h"

// What an estimate counts, against sums made by hand.
namespace inlay::testing {
namespace {

// Of imaginary_model.
constexpr double tokens = 4096, hidden = 1024, intermediate = 4096, vocab = 8000, qkv = 1024 + 2 * 256;

// FLOPs of the products of a step, one multiplication a second; everything else takes no time.
double products(const std::shared_ptr<const osft::OsftLayout>& layout, std::int64_t micro_batches = 1) {
  train::EngineOptions options = {.device = Device::cuda, .compute = DType::bf16};
  options.max_tokens = options.max_document = static_cast<std::int64_t>(tokens);
  options.osft = layout;
  constexpr double at_once = std::numeric_limits<double>::infinity();
  const train::Ceilings ceilings = {
      .matmul = 1, .attention = at_once, .memory = at_once, .link = at_once, .host = at_once, .source = {}};
  const model::ModelConfig config = imaginary_model(2);
  const train::StepEstimate estimate = train::estimate_step(config, options, {}, micro_batches, ceilings);
  return static_cast<double>(micro_batches) * tokens / estimate.tokens_per_second;
}

constexpr double mlp = 3 * hidden * intermediate, attention = hidden * qkv + hidden * hidden;
constexpr double matrices = 2 * (mlp + attention) + vocab * hidden;

TEST(TrainStepTime, APlainStepHasThreeProductsForEveryWeight) {
  EXPECT_DOUBLE_EQ(products(nullptr), 6 * tokens * matrices);
  EXPECT_DOUBLE_EQ(products(nullptr, 3), 3 * 6 * tokens * matrices);
}

TEST(TrainStepTime, WhatIsFrozenHasTwo) {
  auto layout = std::make_shared<osft::OsftLayout>();
  layout->frozen = {"head", "layers.1.mlp.down"};
  EXPECT_DOUBLE_EQ(products(layout), 6 * tokens * matrices - 2 * tokens * (vocab * hidden + hidden * intermediate));
}

TEST(TrainStepTime, ASubspaceOfTheInputsCostsItsDirectionsAndTheRebuilding) {
  auto layout = std::make_shared<osft::OsftLayout>();
  layout->targets["layers.0.mlp.down"] = weights::InputLayout{.free = 256, .frozen = 4096 - 256};
  const double change = 2 * tokens * 256 * (hidden + intermediate) - 2 * tokens * hidden * intermediate;
  const double rebuild = 2 * 256 * hidden * intermediate;
  EXPECT_DOUBLE_EQ(products(layout), 6 * tokens * matrices + change + rebuild);
  // Once a step, however many micro-batches there are.
  EXPECT_DOUBLE_EQ(products(layout, 4), 4 * (6 * tokens * matrices + change) + rebuild);
}

TEST(TrainStepTime, FactorsCostWhatTheirRouteDoes) {
  const double rank = 128, others = 1024 - 128;
  weights::FactorLayout factors;
  factors.parts = {{.free = 128, .frozen = 1024 - 128}};
  const double both = hidden + intermediate, dense = hidden * intermediate, projections = 3 * 4 * both * rank * rank;
  const auto with = [&](weights::Route route) {
    auto layout = std::make_shared<osft::OsftLayout>();
    factors.route = route;
    layout->targets["layers.0.mlp.down"] = factors;
    return products(layout) - 6 * tokens * matrices + 2 * tokens * dense - projections;
  };
  const double through_factors = 4 * tokens * rank * both;
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-12 * 6 * tokens * matrices; };
  EXPECT_TRUE(near(with(weights::Route::direct), through_factors + 4 * rank * dense));
  EXPECT_TRUE(near(with(weights::Route::dense), 2 * tokens * dense + 8 * rank * dense));
  EXPECT_TRUE(near(with(weights::Route::factored), through_factors + 4 * tokens * ((rank + others) * both - dense)));
}

}  // namespace
}  // namespace inlay::testing
