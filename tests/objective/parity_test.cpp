#include <gtest/gtest.h>

#include "objective/objective_fixture.h"
#include "support/device_tensors.h"

// Losses beyond the next token against PyTorch and TRL: the same weights and documents, the same loss, metrics and
// gradients; and the memory of a step is what was planned.
namespace inlay::testing {
namespace {

struct ObjectiveCase {
  std::string model, name;
  Device device;
};

std::vector<ObjectiveCase> objective_cases() {
  std::vector<ObjectiveCase> result;
  for (const char* model : {"llama_linear_sharded", "gemma2_softcaps"}) {
    for (const std::string& name : ObjectiveFixture(model).names()) {
      for (const Device device : devices()) result.push_back({model, name, device});
    }
  }
  return result;
}

class ObjectiveParity : public ::testing::TestWithParam<ObjectiveCase> {
 protected:
  void check(train::EngineOptions options) const {
    const auto& [model, name, device] = GetParam();
    const ObjectiveFixture fixture(model);
    options.device = device;
    options.compute = DType::f32;
    options.optimizer_state = false;
    const auto engine = fixture.engine(name, options);
    const train::StepResult step = engine->gradients({pack(fixture.documents(name))});
    const inlay::model::LossSums sums = engine->decoder().read_loss(engine->exec());
    const nlohmann::json& expected = fixture.at(name);
    const double loss = expected.at("loss");
    EXPECT_LE(std::abs(sums.loss - loss), 1e-5 * std::abs(loss));
    EXPECT_GT(step.weight, 0);
    for (const auto& [metric, value] : engine->decoder().objective().metrics(sums.parts)) {
      if (!expected.at("metrics").contains(metric)) continue;
      const double theirs = expected.at("metrics").at(metric);
      if (metric == "divergence") continue;  // below
      EXPECT_LE(std::abs(value - theirs), 1e-5 * std::max(1.0, std::abs(theirs))) << metric;
    }
    if (expected.at("metrics").contains("divergence")) {
      const double theirs = expected.at("metrics").at("divergence");
      EXPECT_LE(std::abs(sums.parts.at(0) - theirs), 1e-5 * std::abs(theirs));
    }
    for (const auto& [key, gradient] : gradients_of(*engine)) {
      EXPECT_LE(relative_error(gradient, fixture.gradient(name, key)), 1e-5) << key;
    }
  }
};

TEST_P(ObjectiveParity, LossMetricsAndGradients) { check({}); }

// Every chunk holds a part of a sequence.
TEST_P(ObjectiveParity, InSmallChunks) { check({.loss = {.chunk = 5}}); }

// It assumes that every label counts, so here they do.
TEST_P(ObjectiveParity, PlanIsWhatAStepTakes) {
  const auto& [model, name, device] = GetParam();
  const ObjectiveFixture fixture(model);
  std::vector<Document> documents = fixture.documents(name);
  for (Document& document : documents) {
    for (std::size_t i = 0; i < document.labels.size(); ++i) {
      if (!marks_sequence(document.labels[i])) document.labels[i] = document.input_ids[i];
    }
  }
  const std::vector<PackedBatch> batch = {pack(documents)};
  for (const DType compute : {DType::f32, DType::bf16}) {
    const auto engine = fixture.engine(name, {.device = device, .compute = compute});
    const train::MemoryPlan plan = train::Engine::plan(fixture.model.config, engine->options());
    engine->train_step(batch, 1, 1e-3);
    engine->evaluate(batch[0]);
    EXPECT_LE(engine->exec().arena().peak(), plan.device_peak) << name_of(compute);
    EXPECT_GE(static_cast<double>(engine->exec().arena().peak()), 0.99 * static_cast<double>(plan.device_peak))
        << name_of(compute);
  }
}

std::string case_name(const ::testing::TestParamInfo<ObjectiveCase>& info) {
  return info.param.model + "_" + info.param.name + "_" + std::string(name_of(info.param.device));
}
INSTANTIATE_TEST_SUITE_P(, ObjectiveParity, ::testing::ValuesIn(objective_cases()), case_name);

// The model itself in place of a copy of it: before the first step both are the same.
class ObjectiveParityItself : public ObjectiveParity {};

TEST_P(ObjectiveParityItself, LossMetricsAndGradients) { check({.other = {.itself = true}}); }

std::vector<ObjectiveCase> demonstrated_cases() {
  std::vector<ObjectiveCase> cases = objective_cases();
  std::erase_if(cases, [](const ObjectiveCase& c) {
    return !ObjectiveFixture(c.model).at(c.name).at("settings").contains("shown");
  });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(, ObjectiveParityItself, ::testing::ValuesIn(demonstrated_cases()), case_name);

}  // namespace
}  // namespace inlay::testing
