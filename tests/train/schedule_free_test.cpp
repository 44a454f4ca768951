
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "support/paths.h"

// AdamW without a schedule, in a model: gradients are computed at one point, and the model is another.
namespace inlay::testing {
namespace {

using train::OptimizerKind;

class TrainScheduleFree : public ::testing::TestWithParam<Device> {};

TEST_P(TrainScheduleFree, TenStepsAreThoseOfItsAuthors) {
  std::ifstream file(source_folder() / "tests/golden/schedule_free.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const auto& run : expected.at("models")) {
    SCOPED_TRACE(run.at("model").get<std::string>());
    const Fixture fixture(source_folder() / "tests/golden/models" / run.at("model").get<std::string>());
    const auto engine = fixture.engine({.device = GetParam(),
                                        .compute = DType::f32,
                                        .optimizer = {.kind = OptimizerKind::schedule_free,
                                                      .beta1 = expected.at("beta1"),
                                                      .beta2 = expected.at("beta2"),
                                                      .eps = expected.at("eps"),
                                                      .weight_decay = expected.at("weight_decay"),
                                                      .decay_vectors = true}});
    const std::vector<PackedBatch> batches = {pack(fixture.documents)};
    std::int64_t step = 0;
    for (const double loss : run.at("losses")) {
      EXPECT_NEAR(engine->train_step(batches, ++step, run.at("lr")).loss, loss, 1e-5 * loss) << step;
    }
    if (fixture.config.experts.balance > 0) continue;  // which an evaluation does not count
    // Between steps the weights are the model's.
    const double result = run.at("result"), labels = static_cast<double>(batches[0].valid_count());
    EXPECT_NEAR(engine->evaluate(batches[0]).loss / labels, result, 1e-5 * result);
  }
}

// A step reads and writes what AdamW's does, and goes to where gradients are computed before: the weight is read and
// written, with what completes it, and where plain steps lead is read.
TEST_P(TrainScheduleFree, ThePlanKnowsOfTheWayAhead) {
  const Fixture fixture(model_fixtures().front());
  for (const DType compute : {DType::f32, DType::bf16}) {
    const auto plan = [&](OptimizerKind kind) {
      return train::Engine::plan(fixture.config, {.device = GetParam(),
                                                  .compute = compute,
                                                  // Both step after the pass, and so in the same memory.
                                                  .optimizer = {.kind = kind, .max_grad_norm = 1.0},
                                                  .max_tokens = 64,
                                                  .max_document = 64});
    };
    const train::MemoryPlan adamw = plan(OptimizerKind::adamw), free = plan(OptimizerKind::schedule_free);
    const double more = 12.0 * static_cast<double>(free.trained);
    EXPECT_EQ(free.cost.of(backend::StepPart::optimizer).bytes,
              adamw.cost.of(backend::StepPart::optimizer).bytes + more);
    EXPECT_EQ(free.cost.of(backend::StepPart::none).bytes, adamw.cost.of(backend::StepPart::none).bytes);
    EXPECT_EQ(free.device_peak, adamw.device_peak);
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainScheduleFree, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
