#include "support/adapter_run.h"
#include "support/files.h"
#include "support/gpt_oss_checkpoint.h"
#include "support/largest_batch.h"
#include "train/checkpoint.h"
#include "train/merge.h"

// Adapters over quantised bases, their files, and what merging makes of them.
namespace inlay::train {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::QuantFormat;

class TrainAdapterFormats : public ::testing::TestWithParam<Device> {
 protected:
  EngineOptions options(DType compute = DType::f32) const { return {.device = GetParam(), .compute = compute}; }
};

std::map<std::string, std::vector<double>> adapter_gradients(AdapterRun& run) {
  run.engine->gradients(run.batch());
  std::map<std::string, std::vector<double>> result;
  for (weights::Weight* weight : run.engine->decoder().weights()) {
    weight->for_each_own([&](weights::Parameter& p) {
      std::vector<float> values(static_cast<std::size_t>(p.size()));
      run.engine->exec().download(values.data(), p.grad);
      result[p.name] = {values.begin(), values.end()};
    });
  }
  return result;
}

// The matrices of a run as its layers multiply by them, without the adapters.
std::map<std::string, std::vector<float>> opened_matrices(AdapterRun& run, const BaseFormat& format) {
  std::map<std::string, std::vector<float>> result;
  const adapter::BaseKind kind = base_kind(format);
  const io::Checkpoint base(run.fixture.folder);
  model::ModelParameters parameters(run.fixture.config);
  parameters.for_each([&](weights::Parameter& p) {
    if (!format.of(p)) return;
    p.trainable = false;
    TestBench bench(Device::cpu, std::size_t{64} << 20);
    const auto weight = kind(p)->make(bench.exec, p, {.compute = DType::f32});
    for (const weights::Part& part : p.parts) {
      model::PartReader reader(base, p, part);
      weight->load(bench.exec, part, &reader);
    }
    std::vector<float>& rows = result[p.name];
    rows.resize(static_cast<std::size_t>(p.size()));
    weight->read_rows(bench.exec, View(rows.data(), DType::f32, p.shape), 0);
  });
  return result;
}

TEST_P(TrainAdapterFormats, AQuantisedBaseIsItsOpenedMatrices) {
  for (const char* name : {"llama", "mixtral_experts", "qwen2_dora"}) {
    for (const QuantFormat quant : {QuantFormat::nf4, QuantFormat::int8, QuantFormat::fp8}) {
      SCOPED_TRACE(fmt::format("{} over {}", name, ops::name_of(quant)));
      const BaseFormat format{.matrices = quant};
      AdapterRun quantised(adapter_fixture(name), options(), format);
      AdapterRun plain(adapter_fixture(name), options());
      // The same numbers in a dense base.
      const auto matrices = opened_matrices(quantised, format);
      EXPECT_FALSE(matrices.empty());
      plain.engine->decoder().parameters().for_each([&](weights::Parameter& p) {
        if (const auto found = matrices.find(p.name); found != matrices.end()) {
          plain.engine->exec().upload(p.value, found->second.data());
        }
      });
      plain.engine->decoder().update_weights(plain.engine->exec());  // norms of rows
      const std::vector<double> logits = quantised.logits(0);
      EXPECT_LT(relative_error(logits, plain.logits(0)), 1e-6);
      EXPECT_GT(relative_error(logits, plain.expected_tensor("logits.0")), 1e-4) << "nothing was quantised";
      const auto actual = adapter_gradients(quantised), expected = adapter_gradients(plain);
      for (const auto& [tensor, values] : expected) {
        EXPECT_LT(relative_error(actual.at(tensor), values), 1e-5) << tensor;
      }
    }
  }
}

// Saving takes memory of its own, where layers are on the host.
void save_all(Engine& engine, const std::filesystem::path& base, const EngineAdapter& adapter) {
  const TempFolder runs;
  save_checkpoint(*parallel::single_process(), engine, {base, {}, std::make_shared<EngineAdapter>(adapter)},
                  runs.path(), {.step = 2});
}

TEST_P(TrainAdapterFormats, PlansAreWhatRunsTake) {
  struct Case {
    const char* name;
    BaseFormat format;
    double dropout;
    std::int64_t host_layers = 0;
  };
  const Case cases[] = {{"llama", {}, 0},
                        {"llama", {}, 0, 1},
                        {"llama", {.matrices = QuantFormat::nf4}, 0.1, 2},
                        {"qwen3_embeddings", {}, 0},  // trains its embedding whole
                        {"qwen3_embeddings", {.matrices = QuantFormat::nf4}, 0, 1},
                        {"llama", {.matrices = QuantFormat::fp8}, 0},
                        {"mixtral_experts", {.matrices = QuantFormat::fp8}, 0},
                        {"llama", {}, 0.1},
                        {"qwen2_dora", {}, 0},
                        {"mixtral_experts", {}, 0.1},
                        {"llama", {.matrices = QuantFormat::nf4}, 0},
                        {"mixtral_experts", {.matrices = QuantFormat::nf4}, 0},
                        {"qwen2_dora", {.matrices = QuantFormat::int8}, 0}};
  for (const Case& c : cases) {
    for (const char* policy : {"keep", "recompute"}) {
      for (const std::int64_t tile : {0, 7}) {
        SCOPED_TRACE(fmt::format("{} {} {} {} {} {}", c.name, c.format.name(DType::bf16), c.dropout, policy, tile,
                                 c.host_layers));
        EngineOptions o = options(DType::bf16);
        o.policy = model::ActivationPolicy::parse(policy);
        o.mlp_tile = tile;
        o.host_layers = c.host_layers;
        AdapterRun run(adapter_fixture(c.name), o, c.format, {.probability = c.dropout, .seed = 3});
        const MemoryPlan plan = Engine::plan(run.fixture.config, run.engine->options());
        const std::vector<PackedBatch> batch = {largest_batch(run.engine->options())};
        for (int step = 1; step <= 2; ++step) run.engine->train_step(batch, step, 1e-3);
        save_all(*run.engine, run.fixture.folder, {.config = run.file.config(), .targets = run.file.targets()});
        EXPECT_EQ(run.engine->exec().arena().peak(), plan.device_peak);
        EXPECT_EQ(run.engine->exec().host().arena().peak(), plan.host_peak);
      }
    }
  }
}

// What is recomputed changes no bit, although numbers are dropped; nor do tiles change what is dropped, although the
// rows of experts are in another order in every tile.
TEST_P(TrainAdapterFormats, DropoutIsTheSameUnderAnyPolicy) {
  for (const char* name : {"llama", "mixtral_experts"}) {
    SCOPED_TRACE(name);
    const auto gradients = [&](const char* policy, std::int64_t tile, std::uint64_t seed, double probability) {
      EngineOptions o = options();
      o.policy = model::ActivationPolicy::parse(policy);
      o.mlp_tile = tile;
      AdapterRun run(adapter_fixture(name), o, {}, {.probability = probability, .seed = seed});
      return adapter_gradients(run);
    };
    const auto expected = gradients("keep", 0, 3, 0.3);
    EXPECT_EQ(gradients("recompute", 0, 3, 0.3), expected);
    EXPECT_EQ(gradients("recompute", 5, 3, 0.3), gradients("keep", 5, 3, 0.3));
    const auto tiled = gradients("recompute", 5, 3, 0.3);
    for (const auto& [tensor, values] : expected) {
      EXPECT_LT(relative_error(tiled.at(tensor), values), 1e-5) << tensor;  // sums over tiles
    }
    EXPECT_NE(gradients("keep", 0, 4, 0.3), expected) << "the seed counts";
    EXPECT_NE(gradients("keep", 0, 3, 0), expected) << "something was dropped";
  }
}

TEST_P(TrainAdapterFormats, MergedEqualsUnmerged) {
  for (const char* name : {"llama", "llama_tied", "qwen2_dora", "mixtral_experts", "gpt_oss_experts",
                           "qwen3_embeddings", "mistral_head"}) {
    SCOPED_TRACE(name);
    AdapterRun run(adapter_fixture(name), options());
    const TempFolder folder;
    Console console(true);
    const MergeReport report = merge({.base = run.fixture.folder,
                                      .adapter = adapter_fixture(name),
                                      .output = folder.path() / "merged",
                                      .dtype = DType::f32},
                                     console);
    EXPECT_NEAR(report.kept, 1.0, 1e-5);
    EXPECT_LT(report.noise, 1e-4);
    EngineOptions o = options();
    o.logit_rows = 64;
    o.max_tokens = o.max_document = 64;
    run.engine = Engine::create(model::load_config(folder.path() / "merged"), o);
    run.engine->load(io::Checkpoint(folder.path() / "merged"));
    EXPECT_LT(relative_error(run.logits(0), run.expected_tensor("logits.0")), 2e-5);
  }
}

// What was trained over codes is merged with what they say.
TEST_P(TrainAdapterFormats, AQuantisedBaseIsMergedAsItWasTrainedWith) {
  AdapterRun run(adapter_fixture("llama"), options(), {.matrices = QuantFormat::nf4});
  const std::vector<double> trained = run.logits(0);
  const TempFolder folder;
  EngineAdapter adapter{.config = run.file.config(),
                        .targets = run.file.targets(),
                        .format = {.matrices = QuantFormat::nf4},
                        .origin = {.base = adapter::base_fingerprint(io::Checkpoint(run.fixture.folder)),
                                   .base_format = "nf4",
                                   .init = "gaussian"}};
  save_adapter(*parallel::single_process(), *run.engine, adapter, folder.path() / "adapter");
  Console console(true);
  merge({.base = run.fixture.folder,
         .adapter = folder.path() / "adapter",
         .output = folder.path() / "merged",
         .dtype = DType::f32},
        console);
  EngineOptions o = options();
  o.logit_rows = o.max_tokens = o.max_document = 64;
  run.engine = Engine::create(model::load_config(folder.path() / "merged"), o);
  run.engine->load(io::Checkpoint(folder.path() / "merged"));
  EXPECT_LT(relative_error(run.logits(0), trained), 2e-5);
}

// GPT-OSS as it is published: experts are opened for every product, and never decoded as a whole.
struct Mxfp4Run {
  explicit Mxfp4Run(EngineOptions options, const std::filesystem::path& folder, bool stays_packed)
      : config(model::load_config(folder)) {
    adapter.config.rank = 4;
    adapter.config.alpha = 8;
    adapter.config.target_modules.names = {"q_proj", "o_proj"};
    adapter.config.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    adapter.targets = adapter::find_targets(adapter.config, config, {.file = "test", .options = true});
    adapter.format.mxfp4_experts = stays_packed;
    options.weights = weight_plan(adapter, config);
    options.max_tokens = options.max_document = options.logit_rows = 24;
    engine = Engine::create(config, options);
    engine->load(io::Checkpoint(folder));
    // B is not zero, so that gradients reach A.
    const auto b = [](const adapter::AdaptedPart& part) {
      const auto count = static_cast<std::size_t>(part.out * part.rank);
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = 0.02f * Philox{7}.normal(i, static_cast<std::uint64_t>(part.out + part.expert));
      }
      return values;
    };
    start_adapter(*engine, adapter.targets,
                  {adapter.targets,
                   {.a = a_of, .b = b, .magnitude = [](const adapter::AdaptedPart&) { return std::vector<float>(); }}});
  }

  static std::vector<float> a_of(const adapter::AdaptedPart& part) {
    std::vector<float> values(static_cast<std::size_t>(part.rank * part.in));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.25f * Philox{5}.normal(i, static_cast<std::uint64_t>(part.in + part.expert));
    }
    return values;
  }
  static PackedBatch batch() {
    Document document;
    for (std::int32_t i = 0; i < 24; ++i) document.input_ids.push_back(i * 37 % 96);
    document.labels = document.input_ids;
    return pack(std::span(&document, 1));
  }
  std::vector<double> logits() {
    std::vector<std::int32_t> rows(24);
    std::iota(rows.begin(), rows.end(), 0);
    const std::vector<float> values = engine->decoder().logits(engine->exec(), batch(), rows);
    return {values.begin(), values.end()};
  }
  std::map<std::string, std::vector<double>> gradients() {
    engine->gradients({batch()});
    std::map<std::string, std::vector<double>> result;
    for (weights::Weight* weight : engine->decoder().weights()) {
      weight->for_each_own([&](weights::Parameter& p) {
        std::vector<float> values(static_cast<std::size_t>(p.size()));
        engine->exec().download(values.data(), p.grad);
        result[p.name] = {values.begin(), values.end()};
      });
    }
    return result;
  }

  model::ModelConfig config;
  EngineAdapter adapter;
  std::unique_ptr<Engine> engine;
};

TEST_P(TrainAdapterFormats, PlansOverMxfp4AreWhatRunsTake) {
  const GptOssCheckpoint checkpoint(GptOssCheckpoint::Form::mxfp4);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t host_layers : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), host_layers));
      EngineOptions o = options(dtype);
      o.host_layers = host_layers;
      Mxfp4Run run(o, checkpoint.folder.path(), true);
      const MemoryPlan plan = Engine::plan(run.config, run.engine->options());
      for (int step = 1; step <= 2; ++step) {
        run.engine->train_step({largest_batch(run.engine->options())}, step, 1e-3);
      }
      save_all(*run.engine, checkpoint.folder.path(), run.adapter);
      EXPECT_EQ(run.engine->exec().arena().peak(), plan.device_peak);
      EXPECT_EQ(run.engine->exec().host().arena().peak(), plan.host_peak);
    }
  }
}

TEST_P(TrainAdapterFormats, ExpertsStayInMxfp4AndCanBePackedAgain) {
  const GptOssCheckpoint checkpoint(GptOssCheckpoint::Form::mxfp4);
  const TempFolder& base = checkpoint.folder;
  Mxfp4Run packed(options(), base.path(), true), decoded(options(), base.path(), false);
  EXPECT_LT(relative_error(packed.logits(), decoded.logits()), 1e-6);
  const auto actual = packed.gradients(), expected = decoded.gradients();
  for (const auto& [name, values] : expected) EXPECT_LT(relative_error(actual.at(name), values), 1e-5) << name;
  EXPECT_LT(packed.engine->exec().arena().peak(), decoded.engine->exec().arena().peak());

  const TempFolder folder;
  packed.adapter.origin.base = adapter::base_fingerprint(io::Checkpoint(base.path()));
  save_adapter(*parallel::single_process(), *packed.engine, packed.adapter, folder.path() / "adapter");
  Console console(true);
  const auto merged = [&](const char* name, std::optional<DType> dtype, bool mxfp4) {
    return merge({.base = base.path(),
                  .adapter = folder.path() / "adapter",
                  .output = folder.path() / name,
                  .dtype = dtype,
                  .mxfp4 = mxfp4},
                 console);
  };
  EXPECT_NEAR(merged("fp32/", DType::f32, false).kept, 1.0, 1e-4);
  const MergeReport again = merged("mxfp4", {}, true);
  EXPECT_GT(again.noise, 0.1) << "four bits hold little of a small change";
  const io::Checkpoint result(folder.path() / "mxfp4"), before(base.path());
  const std::string blocks = "model.layers.0.mlp.experts.down_proj_blocks";
  ASSERT_TRUE(result.contains(blocks));
  EXPECT_EQ(result.find(blocks)->shape, before.find(blocks)->shape);
  EXPECT_TRUE(model::load_config(folder.path() / "mxfp4").layers[0].experts);
  EngineOptions o = options();
  o.max_tokens = o.max_document = o.logit_rows = 24;
  const std::vector<double> trained = packed.logits();
  packed.engine = Engine::create(packed.config, o);
  packed.engine->load(io::Checkpoint(folder.path() / "fp32"));
  EXPECT_LT(relative_error(packed.logits(), trained), 2e-5);
  // Packed numbers are the nearest: below the largest of a block, of which there are four in a power of two, and at
  // most 6 of the 8 that a block's exponent allows.
  const io::Checkpoint exact(folder.path() / "fp32");
  model::ModelParameters parameters(packed.config);
  for (weights::Parameter& p : parameters.layers[1]->moe.down) {
    model::PartReader four_bits(result, p, p.parts[0]), whole(exact, p, p.parts[0]);
    const ConstView actual = four_bits.rows(0, p.rows()), wanted = whole.rows(0, p.rows());
    for (std::int64_t block = 0; block < p.size(); block += 32) {
      float largest = 0;
      for (std::int64_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(wanted.as<float>()[i]));
      for (std::int64_t i = block; i < block + 32; ++i) {
        ASSERT_LE(std::abs(static_cast<float>(actual.as<bf16>()[i]) - wanted.as<float>()[i]), largest / 4) << p.name;
      }
    }
  }
}

TEST_P(TrainAdapterFormats, WhatIsWrittenIsReadAgain) {
  for (const auto& from : adapter_fixtures()) {
    SCOPED_TRACE(from.filename().string());
    AdapterRun run(from, options());
    const std::vector<double> logits = run.logits(0);
    const TempFolder folder;
    const EngineAdapter adapter{
        .config = run.file.config(), .targets = run.file.targets(), .format = {}, .origin = {.base_format = "fp32"}};
    save_adapter(*parallel::single_process(), *run.engine, adapter, folder.path() / "adapter");
    const adapter::AdapterFile again(folder.path() / "adapter", run.fixture.config);
    EXPECT_EQ(again.config(), run.file.config());
    start_adapter(*run.engine, again.targets(), adapter::start_from(again), &again);
    EXPECT_EQ(run.logits(0), logits);
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainAdapterFormats, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::train
