#include <gtest/gtest.h>

#include "objective/divergence.h"
#include "support/adapter_run.h"

// Staying close to the base model: where adapters alone train it is the model without them, else a copy.
namespace inlay::testing {
namespace {

class ObjectiveBase : public ::testing::TestWithParam<Device> {
 protected:
  train::EngineOptions options(double weight) const {
    train::EngineOptions options{.device = GetParam(), .compute = DType::f32};
    options.objective = std::make_shared<objective::DivergenceKind>(
        ops::DivergenceSpec{.weight = static_cast<float>(weight)}, "kl_to_base");
    options.other.wanted = true;
    return options;
  }
};

double divergence_of(const train::StepResult& step) { return step.metrics.at(0).second; }

// An adapter's own step: the base model's prediction is that of an engine without the adapter.
TEST_P(ObjectiveBase, AdaptersAreLeftOutOfIt) {
  int checked = 0;
  for (const std::filesystem::path& folder : adapter_fixtures()) {
    AdapterRun run(folder, options(0.5));
    if (!run.trains() || !run.engine->decoder().learns_beside()) continue;
    ++checked;
    EXPECT_EQ(run.engine->other(), nullptr) << folder;
    // By logits: of the adapted model, and of the base alone.
    const auto base =
        run.fixture.engine({.device = GetParam(), .compute = DType::f32, .training = false, .logit_rows = 64});
    const PackedBatch batch = run.batch()[0];
    const auto vocab = static_cast<std::size_t>(run.fixture.config.vocab);
    const auto ours = run.engine->decoder().logits(run.engine->exec(), batch, batch.valid_rows);
    const auto theirs = base->decoder().logits(base->exec(), batch, batch.valid_rows);
    double expected = 0;
    for (std::size_t row = 0; row < batch.valid_rows.size(); ++row) {
      const float *z = ours.data() + row * vocab, *u = theirs.data() + row * vocab;
      const auto lse = [&](const float* x) {
        double sum = 0;
        for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(x[v]));
        return std::log(sum);
      };
      const double a = lse(z), b = lse(u);
      for (std::size_t v = 0; v < vocab; ++v) {
        const double log_p = z[v] - a, log_q = u[v] - b;
        expected += std::exp(log_q) * (log_q - log_p) / static_cast<double>(batch.valid_rows.size());
      }
    }
    const train::StepResult step = run.engine->train_step({batch}, 1, 0.0);
    EXPECT_NEAR(divergence_of(step), expected, 1e-4 * expected + 1e-6) << folder;
    EXPECT_GT(expected, 0) << folder;
  }
  EXPECT_GT(checked, 0);
}

// What trains as a whole starts at the base model and leaves it; the copy stays.
TEST_P(ObjectiveBase, ACopyStaysWhereItWas) {
  const Fixture fixture(model_fixtures().front());
  const auto engine = fixture.engine(options(2.0));
  ASSERT_NE(engine->other(), nullptr);
  engine->load_other(io::Checkpoint(fixture.folder));
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  EXPECT_NEAR(divergence_of(engine->train_step(batch, 1, 1e-2)), 0, 1e-9);
  const double gone = divergence_of(engine->train_step(batch, 2, 1e-2));
  EXPECT_GT(gone, 1e-3);
  // Without it the model goes further.
  const auto free = fixture.engine(options(1e-6));
  free->load_other(io::Checkpoint(fixture.folder));
  double further = 0, kept = gone;
  for (int step = 1; step <= 12; ++step) further = divergence_of(free->train_step(batch, step, 1e-2));
  for (int step = 3; step <= 12; ++step) kept = divergence_of(engine->train_step(batch, step, 1e-2));
  EXPECT_LT(kept, 0.7 * further);
}

INSTANTIATE_TEST_SUITE_P(Devices, ObjectiveBase, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
