#include "train/step_time.h"

#include <gtest/gtest.h>

#include "osft/layout.h"
#include "support/imaginary_model.h"

// What a plan counts, against sums made by hand; and what an estimate makes of it.
namespace inlay::testing {
namespace {

using backend::StepPart;
using backend::Work;

// Of imaginary_model, with one document: its last token predicts nothing, so the head has a row less.
constexpr double tokens = 4096, hidden = 1024, intermediate = 4096, vocab = 8000, qkv = 1024 + 2 * 256;
constexpr double mlp = 3 * hidden * intermediate, attention = hidden * qkv + hidden * hidden;
constexpr double layers = 2 * (mlp + attention), labelled = tokens - 1;
constexpr double forward_products = 2 * tokens * layers + 2 * labelled * vocab * hidden;
constexpr double forward_attention = 2 * 4 * hidden * tokens * (tokens + 1) / 2;  // two layers

train::EngineOptions options_of(DType compute = DType::bf16) {
  train::EngineOptions options = {.device = Device::cuda, .compute = compute};
  options.max_tokens = options.max_document = static_cast<std::int64_t>(tokens);
  return options;
}

train::MemoryPlan plan_of(const train::EngineOptions& options) {
  return train::Engine::plan(imaginary_model(2), options);
}

train::MemoryPlan plan_of(const osft::OsftLayout& layout, DType compute = DType::bf16) {
  train::EngineOptions options = options_of(compute);
  options.weights = std::make_shared<weights::WeightPlan>(osft::weight_plan(layout));
  return plan_of(options);
}

double products(const train::MemoryPlan& plan, StepPart part) { return plan.cost.of(part).product_flops(); }
// Of everything a step does.
double products(const train::MemoryPlan& plan) {
  return plan.cost.micro_batch().product_flops() + products(plan, StepPart::optimizer);
}

TEST(TrainStepTime, APlainStepHasThreeProductsForEveryWeight) {
  const train::MemoryPlan plan = plan_of(options_of());
  EXPECT_EQ(products(plan, StepPart::forward), forward_products);
  EXPECT_EQ(products(plan, StepPart::backward), 2 * forward_products);
  EXPECT_EQ(products(plan, StepPart::recompute), 0);
  EXPECT_EQ(products(plan, StepPart::optimizer), 0);
  const Work all = plan.cost.model();
  EXPECT_EQ(all.products[static_cast<std::size_t>(DType::bf16)], 3 * forward_products);
  EXPECT_EQ(plan.cost.of(StepPart::forward).attention, forward_attention);
  EXPECT_EQ(plan.cost.of(StepPart::backward).attention, 2.5 * forward_attention);
  EXPECT_EQ(plan_of(options_of(DType::f32)).cost.model().products[static_cast<std::size_t>(DType::f32)],
            3 * forward_products);
}

TEST(TrainStepTime, TilesAndChunksMultiplyAsMuch) {
  train::EngineOptions options = options_of();
  options.policy = model::ActivationPolicy::parse("recompute_mlp");
  options.mlp_tile = 100;
  options.loss.chunk = 77;
  const train::MemoryPlan plan = plan_of(options);
  EXPECT_EQ(plan.cost.model().product_flops(), 3 * forward_products);
  EXPECT_EQ(products(plan, StepPart::recompute), 2 * 2 * tokens * 2 * hidden * intermediate);
}

TEST(TrainStepTime, WhatIsNotKeptIsComputedAgain) {
  const auto again = [](const char* policy) {
    train::EngineOptions options = options_of();
    options.policy = model::ActivationPolicy::parse(policy);
    return plan_of(options).cost.of(StepPart::recompute);
  };
  const double gate_up = 2 * tokens * 2 * hidden * intermediate, attention_products = 2 * tokens * attention;
  EXPECT_EQ(again("keep").flops(), 0);
  EXPECT_EQ(again("keep").bytes, 0);
  EXPECT_EQ(again("recompute_norms").flops(), 0);
  EXPECT_EQ(again("recompute_norms").bytes, 2 * 2 * 2 * tokens * hidden * 2) << "two norms a layer, read and written";
  EXPECT_EQ(again("attention").product_flops(), 2 * (gate_up + attention_products));
  EXPECT_EQ(again("attention").attention, 0);
  EXPECT_EQ(again("recompute").product_flops(), 2 * (gate_up + attention_products));
  EXPECT_EQ(again("recompute").attention, forward_attention);
}

TEST(TrainStepTime, DocumentsAndWindowsBoundAttention) {
  model::ModelConfig config = imaginary_model(2);
  config.layers[1].window = 100;
  train::EngineOptions options = options_of();
  options.max_document = 1024;
  const double causal = 4 * 1024.0 * 1025 / 2, within = 4 * (100.0 * 101 / 2 + 924 * 100);
  EXPECT_EQ(train::Engine::plan(config, options).cost.of(StepPart::forward).attention, 4 * hidden * (causal + within));
}

TEST(TrainStepTime, ARuleIsCountedByWhatItSees) {
  const auto seen = [](const char* mask) {
    model::ModelConfig config = imaginary_model(2);
    config.attention.mask = mask;
    return train::Engine::plan(config, options_of()).cost.of(StepPart::forward).attention / forward_attention;
  };
  EXPECT_EQ(seen("causal"), 1);
  EXPECT_NEAR(seen("causal and (window(4096) or k == 0)"), 1, 0.02);  // asked along the diagonal
  EXPECT_NEAR(seen("causal and k < 2048"), 0.75, 0.02);
  EXPECT_NEAR(seen("q % 4 == 0"), 0.5, 0.05);
}

TEST(TrainStepTime, TheOptimizerReadsAndWritesItsState) {
  // Of a parameter in bf16: gradient 4 bytes, for its norm and for the update; weight, low half and moments, there and
  // back.
  const double parameters = static_cast<double>(imaginary_model(2).parameter_count());
  const double bytes = plan_of(options_of()).cost.of(StepPart::optimizer).bytes;
  EXPECT_EQ(bytes, parameters * (2 * 4 + 2 * (2 + 2 + 4 + 4)));
}

TEST(TrainStepTime, LayersOnTheHostGoOverTheLink) {
  train::EngineOptions options = options_of();
  options.host_layers = 2;
  const train::MemoryPlan plan = plan_of(options);
  const Work batch = plan.cost.micro_batch();
  // Both buffers still hold the layers when the way back begins. Beside them only the batch itself goes up.
  EXPECT_GE(batch.to_device, 2 * layers);
  EXPECT_LE(batch.to_device, 2 * layers + 64 * tokens);
  EXPECT_EQ(batch.to_host, 4 * layers) << "gradients in fp32";
  EXPECT_EQ(plan.cost.of(StepPart::optimizer).host_bytes, layers * 32);
}

TEST(TrainStepTime, WhatIsFrozenHasTwo) {
  osft::OsftLayout layout;
  layout.frozen = {"head", "layers.1.mlp.down"};
  EXPECT_EQ(products(plan_of(layout)),
            3 * forward_products - 2 * (labelled * vocab * hidden + tokens * hidden * intermediate));
}

TEST(TrainStepTime, ASubspaceOfTheInputsCostsItsDirectionsAndTheRebuilding) {
  osft::OsftLayout layout;
  layout.targets["layers.0.mlp.down"] = weights::InputLayout{.free = 256, .frozen = 4096 - 256};
  const double change = 2 * tokens * 256 * (hidden + intermediate) - 2 * tokens * hidden * intermediate;
  const train::MemoryPlan plan = plan_of(layout);
  EXPECT_EQ(plan.cost.model().product_flops(), 3 * forward_products + change);
  EXPECT_EQ(products(plan, StepPart::optimizer), 2 * 256 * hidden * intermediate);
}

TEST(TrainStepTime, FactorsCostWhatTheirRouteDoes) {
  const double rank = 128, others = 1024 - 128;
  weights::FactorLayout factors;
  factors.parts = {{.free = 128, .frozen = 1024 - 128}};
  const double both = hidden + intermediate, dense = hidden * intermediate;
  // Outputs onto the span of what is free, once for the gradient and once for the change: 128 and 896 are all of them.
  // Inputs away from what is frozen, and for the change a second time, since bf16 leaves a rest.
  const double projections = 2 * 4 * hidden * rank * rank + 3 * 4 * intermediate * rank * others;
  const auto with = [&](weights::Route route) {
    osft::OsftLayout layout;
    factors.route = route;
    layout.targets["layers.0.mlp.down"] = factors;
    return products(plan_of(layout)) - 3 * forward_products + 2 * tokens * dense - projections;
  };
  const double through_factors = 4 * tokens * rank * both;
  EXPECT_EQ(with(weights::Route::direct), through_factors + 4 * rank * dense);
  EXPECT_EQ(with(weights::Route::dense), 2 * tokens * dense + 8 * rank * dense);
  EXPECT_EQ(with(weights::Route::factored), through_factors + 4 * tokens * ((rank + others) * both - dense));
}

TEST(TrainStepTime, ExpertsMultiplyTheRowsTheyGet) {
  model::ModelConfig config = imaginary_model(1);
  config.layers[0].experts = true;
  config.experts.count = 8;
  config.experts.chosen = 2;
  config.experts.intermediate = 512;
  const train::MemoryPlan plan = train::Engine::plan(config, options_of());
  const double forward = 2 * tokens * (attention + 2 * 3 * hidden * 512 + 8 * hidden) + 2 * labelled * vocab * hidden;
  EXPECT_EQ(plan.cost.model().product_flops(), 3 * forward);
  EXPECT_EQ(products(plan, StepPart::recompute), 2 * tokens * 8 * hidden) << "the router's product";
}

// One of every kind a second.
train::Ceilings ones() {
  return {.matmul = 1, .fp8 = 1, .attention = 1, .memory = 1, .link = 1, .host = 1, .source = {}};
}

TEST(TrainStepTime, TheEstimateIsTheSumOfWhatWasCounted) {
  train::EngineOptions options = options_of();
  options.policy = model::ActivationPolicy::parse("recompute");
  const train::MemoryPlan plan = plan_of(options);
  const train::StepEstimate estimate = train::estimate_step(plan, 3, ones());
  const Work batch = plan.cost.micro_batch(), update = plan.cost.of(StepPart::optimizer);
  const double seconds = batch.product_flops() + batch.attention + batch.bytes;
  EXPECT_DOUBLE_EQ(estimate.compute_seconds, seconds);
  EXPECT_DOUBLE_EQ(estimate.optimizer_seconds, update.bytes);
  EXPECT_DOUBLE_EQ(estimate.tokens_per_second, 3 * tokens / (3 * seconds + update.bytes));
}

TEST(TrainStepTime, RealBatchesAreAShareOfThePlan) {
  const train::MemoryPlan plan = plan_of(options_of());
  const auto batch = [](std::vector<std::size_t> lengths) {
    std::vector<Document> documents;
    for (const std::size_t length : lengths) {
      documents.push_back(
          {.input_ids = std::vector<std::int32_t>(length), .labels = std::vector<std::int32_t>(length)});
    }
    return pack(documents);
  };
  EXPECT_DOUBLE_EQ(train::model_flops(plan, {batch({4096})}), plan.cost.model().flops());
  EXPECT_DOUBLE_EQ(train::model_flops(plan, {batch({2048}), batch({1024, 1024})}),
                   plan.cost.model().product_flops() + plan.cost.model().attention * (0.25 + 2 * 0.0625));
}

}  // namespace
}  // namespace inlay::testing
