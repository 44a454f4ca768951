#include <gtest/gtest.h>

#include "model/presets.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/paths.h"

namespace inlay::testing {
namespace {

class TrainPlan : public ::testing::TestWithParam<Device> {};

// Takes a step as planned, and compares. A plan assumes that every label counts, so here they do.
void expect_the_plan(const std::filesystem::path& folder, train::EngineOptions options) {
  Fixture fixture(folder);
  for (Document& document : fixture.documents) document.labels = document.input_ids;
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  options.max_tokens = batch[0].token_count();
  options.max_document = 64;
  const train::MemoryPlan plan = train::Engine::plan(fixture.config, options);
  const auto engine = train::Engine::create(fixture.config, options);
  engine->load(io::Checkpoint(fixture.folder));
  engine->train_step(batch, 1, 1e-3);
  engine->evaluate(batch[0]);
  EXPECT_LE(engine->exec().arena().peak(), plan.device_peak);
  EXPECT_GE(static_cast<double>(engine->exec().arena().peak()), 0.99 * static_cast<double>(plan.device_peak));
}

// The plan is what the run then uses, over policies, dtypes and tiles.
TEST_P(TrainPlan, PredictsTheArenaPeak) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* policy : {"keep", "recompute", "recompute_mlp"}) {
      for (const std::int64_t tile : {0, 16}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), policy, tile));
        expect_the_plan(model_fixtures().front(), {.device = GetParam(),
                                                   .compute = dtype,
                                                   .policy = model::ActivationPolicy::parse(policy),
                                                   .mlp_tile = tile});
      }
    }
  }
}

TEST_P(TrainPlan, PredictsItForEveryFamily) {
  for (const auto& folder : model_fixtures()) {
    for (const auto& [dtype, policy, tile] :
         {std::tuple{DType::f32, "keep", 0}, {DType::bf16, "recompute", 16}, {DType::bf16, "keep", 0}}) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", folder.filename().string(), name_of(dtype), policy, tile));
      expect_the_plan(
          folder,
          {.device = GetParam(), .compute = dtype, .policy = model::ActivationPolicy::parse(policy), .mlp_tile = tile});
    }
  }
}

// Whatever the optimizer keeps and borrows.
TEST_P(TrainPlan, KnowsTheOptimizers) {
  Fixture fixture(model_fixtures().front());
  for (Document& document : fixture.documents) document.labels = document.input_ids;
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  std::vector<std::int64_t> peaks;
  std::vector<double> bytes;  // for each number that trains, through memory in an update
  for (const train::OptimizerOptions& optimizer : {train::OptimizerOptions{},
                                                   {.kind = train::OptimizerKind::muon},
                                                   {.moments = DType::u8},
                                                   {.kind = train::OptimizerKind::schedule_free}}) {
    train::EngineOptions options = {.device = GetParam(),
                                    .compute = DType::f32,
                                    .optimizer = optimizer,
                                    .max_tokens = batch[0].token_count(),
                                    .max_document = 64};
    const train::MemoryPlan plan = train::Engine::plan(fixture.config, options);
    const auto engine = train::Engine::create(fixture.config, options);
    engine->load(io::Checkpoint(fixture.folder));
    engine->train_step(batch, 1, 1e-3);
    EXPECT_LE(engine->exec().arena().peak(), plan.device_peak);
    EXPECT_GE(static_cast<double>(engine->exec().arena().peak()), 0.99 * static_cast<double>(plan.device_peak));
    peaks.push_back(plan.device_peak);
    bytes.push_back(plan.cost.of(backend::StepPart::optimizer).bytes / static_cast<double>(plan.trained));
  }
  EXPECT_LE(peaks[3], peaks[0]);
  EXPECT_NEAR(bytes[3] - bytes[0], 12, 0.1);  // weights go where gradients are computed: read twice, written once
  // Not less where another phase of so small a model has the peak.
  EXPECT_LE(peaks[1], peaks[0]);
  EXPECT_LE(peaks[2], peaks[0]);
}

// Six bytes less for every number of a large matrix, but for the scales.
TEST_P(TrainPlan, MomentsInEightBitsAreAQuarter) {
  const model::ModelConfig config = model::shape_or_config("llama-8b");
  const auto peak = [&](DType moments) {
    return train::Engine::plan(config, {.device = GetParam(),
                                        .compute = DType::bf16,
                                        .optimizer = {.moments = moments},
                                        .max_tokens = 128,
                                        .max_document = 128})
        .device_peak;
  };
  const auto matrices = static_cast<double>(config.parameter_count() - config.vocab * config.hidden);
  EXPECT_NEAR(static_cast<double>(peak(DType::f32) - peak(DType::u8)), (6 - 8.0 / 256) * matrices, 1e-3 * 6 * matrices);
}

// Of every published configuration that we have: whoever asks for a plan first, without weights, is not refused.
TEST(TrainPlanOfPublished, ModelsIsMadeWithoutWeights) {
  const auto models = nlohmann::json::parse(read_text(source_folder() / "tests/golden/published_configs.json"));
  for (const auto& one : models.at("models")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const model::ModelConfig config = model::parse_config(io::Json::parse(one.at("config").dump(), "config.json"));
    const train::MemoryPlan plan =
        train::Engine::plan(config, {.compute = DType::bf16, .max_tokens = 128, .max_document = 128});
    // Weights in bf16 with what is missing to fp32, their gradients and two moments.
    EXPECT_GE(static_cast<double>(plan.device_peak), 12.0 * one.at("parameters").get<double>());
  }
}

TEST(TrainPlanMessages, OutOfMemoryNamesTheTensorAndWhatHoldsTheRest) {
  const Fixture fixture(model_fixtures().front());
  const train::EngineOptions options = {.max_tokens = 64, .max_document = 64};
  const std::size_t bytes = train::Engine::plan(fixture.config, options).device_peak;
  try {
    train::Engine engine(backend::Exec::runner(Device::cpu, bytes * 3 / 4), fixture.config, options);
    engine.load(io::Checkpoint(fixture.folder));
    engine.train_step({pack(fixture.documents)}, 1, 1e-3);
    FAIL() << "it should not fit";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("out of cpu memory"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("weights"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainPlan, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
