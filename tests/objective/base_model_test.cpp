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

// Σ q (ln q - ln p) over a batch's labels, a mean; p and q by the engine's logits of two batches' rows.
double divergence_by_logits(train::Engine& engine, const PackedBatch& batch, const std::vector<std::int32_t>& rows,
                            const PackedBatch& others, const std::vector<std::int32_t>& others_rows) {
  const std::vector<float> ours = engine.decoder().logits(engine.exec(), batch, rows);
  const std::vector<float> theirs = engine.decoder().logits(engine.exec(), others, others_rows);
  const std::size_t vocab = ours.size() / rows.size();
  double sum = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto log_sum = [&](const float* x) {
      double total = 0;
      for (std::size_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(x[v]));
      return std::log(total);
    };
    const float *z = ours.data() + row * vocab, *u = theirs.data() + row * vocab;
    const double a = log_sum(z), b = log_sum(u);
    for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(u[v] - b) * ((u[v] - b) - (z[v] - a));
  }
  return sum / static_cast<double>(rows.size());
}

// What it says of other prompts, by the weights of the moment, adapters among them.
TEST_P(ObjectiveBase, ItselfIsTheModelAsItIsByThen) {
  const auto check = [&](train::Engine& engine, const PackedBatch& same, const PackedBatch& batch) {
    EXPECT_EQ(engine.other(), nullptr);
    for (int step = 1; step <= 3; ++step) {
      std::vector<std::int32_t> rows;
      for (const std::int32_t row : batch.valid_rows) rows.push_back(batch.others_rows[static_cast<std::size_t>(row)]);
      const double expected = divergence_by_logits(engine, batch, batch.valid_rows, batch.others[0], rows);
      EXPECT_GT(expected, 1e-6);
      EXPECT_NEAR(divergence_of(engine.train_step({batch}, step, 1e-2)), expected, 1e-4 * expected + 1e-6) << step;
    }
    // Where it sees the same prompts it differs from itself by nothing, wherever it has gone.
    EXPECT_NEAR(divergence_of(engine.train_step({same}, 4, 0.0)), 0, 1e-9);
  };
  const auto shown = [](std::vector<Document> documents) {
    for (std::size_t d = 0; d < documents.size(); ++d) {
      documents[d].others_prompt.assign(3 + d, static_cast<std::int32_t>(5 + d));
    }
    return pack(documents);
  };
  train::EngineOptions made = options(1.0);
  made.other.itself = true;
  made.logit_rows = 256;
  const Fixture fixture(model_fixtures().front());
  const PackedBatch batch = shown(fixture.documents);
  made.others_tokens = made.others_document = batch.others[0].token_count();
  made.max_tokens = made.others_tokens;  // its logits are asked for as well
  const auto whole = fixture.engine(made);
  check(*whole, pack(fixture.documents), batch);
  int checked = 0;
  for (const std::filesystem::path& folder : adapter_fixtures()) {
    train::EngineOptions of_adapter = made;
    of_adapter.others_tokens = of_adapter.others_document = of_adapter.max_tokens = 1024;
    AdapterRun run(folder, of_adapter);
    if (!run.trains() || ++checked > 3) continue;
    check(*run.engine, run.batch()[0], shown(run.fixture.documents));
  }
  EXPECT_GT(checked, 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, ObjectiveBase, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
