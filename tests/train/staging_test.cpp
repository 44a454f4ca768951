#include "train/staging.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/training_state.h"
#include "train/session.h"

// The copy that checkpoints are written from, while steps go on.
namespace inlay::testing {
namespace {

class TrainStaging : public ::testing::TestWithParam<Device> {
 protected:
  static void expect_one_moment(train::EngineOptions options) {
    options.device = GetParam();
    options.compute = DType::bf16;
    options.staged = train::Staged::all;
    const Fixture fixture(model_fixtures().front());
    const auto engine = fixture.engine(options);
    const std::vector<PackedBatch> batches = {pack(fixture.documents)};
    backend::Exec& exec = engine->exec();
    std::int64_t step = 0;
    for (int capture = 0; capture < 2; ++capture) {
      engine->train_step(batches, ++step, 0.01);
      const std::map<std::string, Bytes> expected = training_state(*engine);
      // Copies that begin late, as behind those of a large model: who does not wait for them changes what they copy.
      if (exec.on_cuda()) {
        backend::call_in_lane(exec, backend::Lane::to_host,
                              [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
      }
      engine->staging()->capture(exec, engine->optimizer());
      engine->train_step(batches, ++step, 0.01);
      engine->staging()->wait();
      const std::map<std::string, Bytes> now = training_state(*engine);
      ASSERT_EQ(engine->staging()->entries().size(), expected.size());
      for (const train::Staging::Entry& entry : engine->staging()->entries()) {
        Bytes copied(entry.bytes.bytes());
        std::memcpy(copied.data(), entry.bytes.data(), copied.size());
        EXPECT_TRUE(copied == expected.at(entry.name)) << entry.name << ", step " << step;
        if (entry.name.ends_with(".m")) {
          EXPECT_FALSE(copied == now.at(entry.name)) << entry.name << " does not train";
        }
      }
    }
  }
};

TEST_P(TrainStaging, HoldsOneMomentWhileStepsGoOn) {
  expect_one_moment({});
  expect_one_moment({.optimizer = {.moments = DType::u8}});
  expect_one_moment({.optimizer = {.kind = train::OptimizerKind::muon}});
}

// Whose layers are stepped while the way back still runs.
TEST_P(TrainStaging, HoldsOneMomentBesideThePasses) {
  expect_one_moment({.optimizer = {.least_beside = 1}});
  expect_one_moment({.optimizer = {.max_grad_norm = 1.0}});
}

// Whose weights change before the passes as well as after them.
TEST_P(TrainStaging, HoldsOneMomentWhereAStepLooksAhead) {
  expect_one_moment({.optimizer = {.kind = train::OptimizerKind::schedule_free}});
}

// Whose updates run on a thread of their own, with clipping after the step and without it during the way back.
TEST_P(TrainStaging, HoldsOneMomentOfLayersOnTheHost) {
  expect_one_moment({.host_layers = 1});
  expect_one_moment({.host_layers = 1, .optimizer = {.max_grad_norm = 1.0}});
}

// Of a model whose file is in bf16 the numbers that were computed with; their masters' other halves are not written.
TEST_P(TrainStaging, OfAModelAloneHoldsWhatIsWritten) {
  for (const auto& [name, halves] :
       {std::pair{"qwen2_yarn_bf16", 1}, {"mistral_window_fp16", 2}, {"llama_llama3_tied", 2}}) {
    SCOPED_TRACE(name);
    const Fixture fixture(model_fixture(name));
    const auto plan = [&](const std::string& folder, const char* saving) {
      const options::TrainOptions options = options::parse_options(
          fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                      "device: {}\ndtype: bf16\n{}",
                      folder, name_of(GetParam()), saving),
          "test", {});
      train::EngineOptions engine = train::engine_options(options, {.tokens = 64, .document = 64});
      const train::MemoryPlan result = train::resolve_memory(options, fixture.config, engine).plan;
      EXPECT_EQ(engine.staged, *saving != '\0' ? train::Staged::model : train::Staged::nothing);
      return result.device_peak + result.host_peak;
    };
    std::size_t written = 0;
    model::ModelParameters(fixture.config).for_each([&](const weights::Parameter& p) {
      const std::size_t half = static_cast<std::size_t>(p.size()) * size_of(DType::bf16);
      written +=
          static_cast<std::size_t>(halves) * ((half + Arena::alignment - 1) / Arena::alignment * Arena::alignment);
    });
    const char* const alone = "save_steps: 1\nsave_only_model: true\n";
    const std::string folder = fixture.folder.string();
    EXPECT_EQ(plan(folder, alone) - plan(folder, ""), written);
    // A plan where the weights are still to come goes by the configuration.
    const TempFolder bare;
    std::filesystem::copy_file(fixture.folder / "config.json", bare / "config.json");
    EXPECT_EQ(plan(bare.path(), alone) - plan(bare.path(), ""), written);
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainStaging, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
