#include <gmock/gmock.h>

#include "support/device_tensors.h"
#include "support/directions.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/largest_batch.h"
#include "support/paths.h"
#include "train/checkpoint.h"
#include "train/run_engine.h"

// Adapters that begin elsewhere than at random.
namespace inlay::train {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::product;

// A fixture's model with a new adapter, as a run makes it.
struct NewAdapter {
  NewAdapter(const Fixture& fixture, Device device, DType dtype, const std::string& keys,
             const std::filesystem::path& calibration = {}, int rank = 4)
      : config(fixture.config) {
    const std::filesystem::path own = fixture.folder / "data.jsonl";
    for (const Document& d : fixture.documents) bounds.tokens += static_cast<std::int64_t>(d.input_ids.size());
    bounds.document = 64;
    options = options::parse_options(
        fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [{}]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                    "deterministic: true\nmax_grad_norm: 0\ndevice: {}\ndtype: {}\nadapter: lora\nlora_r: {}\n"
                    "lora_alpha: 8\n{}\n",
                    fixture.folder.string(), own.string(), name_of(device), dtype == DType::bf16 ? "bf16" : "fp32",
                    rank, keys) +
            (keys.find("free") == keys.npos ? ""
                                            : fmt::format("osft: {{cache: off, calibration: {{data: {}}}}}\n",
                                                          calibration.empty() ? own.string() : calibration.string())),
        "test", {});
    Console console(true);
    run = make_run_engine(options, config, bounds, console);
  }

  // The directions of its inputs, found once more.
  osft::FoundBases directions() const {
    Console console(true);
    const EngineOptions& engine = run.engine->options();
    return osft::find_bases(search_inputs(options, config, engine.device, console), config, engine.device,
                            engine.compute, step_shape(options, bounds), console);
  }

  model::ModelConfig config;
  BatchBounds bounds;
  options::TrainOptions options;
  RunEngine run;
};

DoubleMatrix stored(const osft::BasisStore& store, const std::string& name) {
  const osft::BasisStore::Tensor& tensor = store.at(name);
  const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
  return {tensor.shape[0], tensor.shape[1], {values, values + tensor.shape.size()}};
}

DoubleMatrix change_of(const adapter::AdapterFile& file, const adapter::AdaptedPart& part) {
  const std::vector<float> a = file.a(part), b = file.b(part);
  DoubleMatrix change = product(DoubleMatrix(part.out, part.rank, {b.begin(), b.end()}),
                                DoubleMatrix(part.rank, part.in, {a.begin(), a.end()}));
  for (double& value : change.data) value *= part.scale;
  return change;
}

std::vector<double> logits_of(Engine& engine, const Document& document) {
  std::vector<std::int32_t> rows(document.input_ids.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  const std::vector<float> values = engine.decoder().logits(engine.exec(), pack(std::span(&document, 1)), rows);
  return {values.begin(), values.end()};
}

const std::string linear = "lora_target_linear: true\n";
const std::string experts = "lora_target_parameters: [experts.gate_up_proj, experts.down_proj]\n";

class TrainAdapterInit : public ::testing::TestWithParam<Device> {};

// In bf16, too, and whichever of the two bases is kept: tensors that share an input, experts.
TEST_P(TrainAdapterInit, WhatAFreeAdapterSavesHasNothingInFrozenDirections) {
  for (const char* name : {"llama_linear_sharded", "llama_llama3_tied", "mixtral_balance"}) {
    const Fixture fixture(model_fixture(name));
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    const std::string targets = linear + (fixture.config.expert_layers() > 0 ? experts : "");
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* free :
           {"lora_free_ratio: 0.3", "lora_free_ratio: 0.7", "lora_free_ratio: 0.3\nosft.basis_on: host"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, name_of(dtype), free));
        NewAdapter adapter(fixture, GetParam(), dtype, targets + "lora_init: free\n" + free);
        const double before = adapter.run.engine->evaluate(batch[0]).loss;
        for (int step = 1; step <= 20; ++step) adapter.run.engine->train_step(batch, step, 1e-2);
        EXPECT_LT(adapter.run.engine->evaluate(batch[0]).loss, before - 1e-3) << "nothing was learned";
        EXPECT_LE(adapter.run.engine->leak(), 1e-5);
        EXPECT_GT(adapter.run.engine->leak(), 0);  // measured

        TempFolder out;
        save_adapter(*parallel::single_process(), *adapter.run.engine, *adapter.run.adapter, out.path());
        const adapter::AdapterFile file(out.path(), fixture.config);
        EXPECT_EQ(file.origin().init, "free");
        const osft::FoundBases found = adapter.directions();
        EXPECT_EQ(found.bases.fingerprint(), adapter.run.basis_fingerprint);
        for (const adapter::AdaptedPart& part : file.targets().parts) {
          const DoubleMatrix change = change_of(file, part);
          if (norm(change) == 0) continue;  // an expert that saw no token
          const bool frozen = found.bases.find(part.parameter + ".frozen") != nullptr;
          const DoubleMatrix rows = stored(found.bases, part.parameter + (frozen ? ".frozen" : ".free"));
          const DoubleMatrix inside = along(change, rows);
          EXPECT_LE(norm(frozen ? inside : difference(change, inside)), 1e-5 * norm(change)) << part.module;
        }
      }
    }
  }
}

// What calibration saw lies in frozen directions altogether: however much is learned from other text, the model
// computes on this one what it did.
TEST_P(TrainAdapterInit, OutputsOnCalibratedTextDoNotChange) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  const Document& known = fixture.documents[0];
  const std::vector<PackedBatch> others = {pack(std::span(fixture.documents).subspan(1))};
  TempFolder folder;
  folder.write("known.jsonl", nlohmann::json{{"input_ids", known.input_ids}, {"labels", known.labels}}.dump() + "\n");
  const auto distance = [&](const std::string& init) {
    NewAdapter adapter(fixture, GetParam(), DType::f32, linear + init, folder / "known.jsonl");
    Engine& engine = *adapter.run.engine;
    const std::vector<double> before = logits_of(engine, known);
    const double loss = engine.evaluate(others[0]).loss;
    for (int step = 1; step <= 20; ++step) engine.train_step(others, step, 1e-2);
    EXPECT_LT(engine.evaluate(others[0]).loss, loss - 0.05) << init;
    return relative_error(logits_of(engine, known), before);
  };
  EXPECT_LT(distance("lora_init: free\nlora_free_ratio: 0.5\n"), 1e-5);
  EXPECT_GT(distance("lora_init: gaussian\n"), 1e-2);
}

// B is zero: to the model an adapter that has learned nothing is none.
TEST_P(TrainAdapterInit, AFreeAdapterBeginsAtTheBaseModel) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  const PackedBatch batch = pack(fixture.documents);
  const auto base = fixture.engine({.device = GetParam(), .compute = DType::f32, .training = false});
  NewAdapter adapter(fixture, GetParam(), DType::f32, linear + "lora_init: free\n");
  EXPECT_NEAR(adapter.run.engine->evaluate(batch).loss, base->evaluate(batch).loss, 1e-6);
  // Rows of A are as long as those of a random one.
  NewAdapter random(fixture, GetParam(), DType::f32, linear);
  const auto size = [](NewAdapter& of) {
    double sum = 0;
    const adapter::AdapterSource source = adapter_source(*of.run.engine, of.run.adapter->targets);
    for (const adapter::AdaptedPart& part : of.run.adapter->targets.parts) {
      for (const float value : source.a(part)) sum += double{value} * value;
    }
    return std::sqrt(sum);
  };
  EXPECT_NEAR(size(adapter) / size(random), 1.0, 0.1);
}

TEST_P(TrainAdapterInit, PlansAreWhatRunsTake) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* init : {"lora_init: free", "lora_init: free\nlora_free_ratio: 0.7", "lora_init: pissa"}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), init));
      NewAdapter adapter(fixture, GetParam(), dtype, linear + init);
      Engine& engine = *adapter.run.engine;
      const std::vector<PackedBatch> batch = {largest_batch(engine.options())};
      for (int step = 1; step <= 2; ++step) engine.train_step(batch, step, 1e-3);
      engine.evaluate(batch[0]);
      engine.leak();
      TempFolder out;
      save_adapter(*parallel::single_process(), engine, *adapter.run.adapter, out.path());
      EXPECT_EQ(engine.exec().arena().peak(), adapter.run.plan.device_peak);
      EXPECT_EQ(engine.exec().host().arena().peak(), adapter.run.plan.host_peak);
      // By the options alone it is the same: calibration saw all directions.
      EngineOptions planned = engine_options(adapter.options, adapter.bounds);
      plan_weights(adapter.options, adapter.config, adapter.bounds, planned);
      EXPECT_EQ(resolve_memory(adapter.options, adapter.config, planned).plan.device_peak,
                adapter.run.plan.device_peak);
    }
  }
}

TEST_P(TrainAdapterInit, MoreRankThanFreeDirectionsIsRefused) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  try {
    NewAdapter adapter(fixture, GetParam(), DType::f32, linear + "lora_init: free\nlora_free_ratio: 0.1");
    FAIL() << "3 of 32 directions are fewer than 4";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("lora_free_ratio: of the 32 directions"));
  }
}

// What is added at first is what is taken out, in any dtype and over a quantised base; and what is saved, an adapter of
// twice the rank, is what was trained, on the base model as it is.
TEST_P(TrainAdapterInit, PissaBeginsAtTheBaseModelAndIsSavedForIt) {
  for (const char* name : {"llama_linear_sharded", "mixtral_balance"}) {
    const Fixture fixture(model_fixture(name));
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    const std::string targets = linear + (fixture.config.expert_layers() > 0 ? experts : "");
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* more : {"", "peft_use_rslora: true", "load_in_8bit: true"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, name_of(dtype), more));
        const double bound = dtype == DType::f32 ? 2e-5 : 2e-2;
        NewAdapter random(fixture, GetParam(), dtype, targets + more);  // its B is zero
        NewAdapter adapter(fixture, GetParam(), dtype, targets + "lora_init: pissa\n" + more);
        Engine& engine = *adapter.run.engine;
        const auto losses = [&](Engine& of) { return of.evaluate(batch[0]).loss; };
        const double before = losses(engine);
        EXPECT_NEAR(before, losses(*random.run.engine), bound * before);
        for (int step = 1; step <= 5; ++step) engine.train_step(batch, step, 1e-3);
        const double after = losses(engine);
        EXPECT_LT(after, before - 1e-2) << "nothing was learned";

        TempFolder out;
        save_adapter(*parallel::single_process(), engine, *adapter.run.adapter, out.path());
        const adapter::AdapterFile file(out.path(), fixture.config);
        EXPECT_EQ(file.config().rank, 8);
        EXPECT_NEAR(file.targets().parts[0].scale, adapter.run.adapter->targets.parts[0].scale, 1e-12);
        Console console(true);
        const EngineOptions options = engine_options(Purpose::evaluation, {GetParam(), dtype}, adapter.bounds);
        const auto loaded = load_engine(fixture.folder, fixture.config, options, console, out.path());
        EXPECT_NEAR(losses(*loaded), after, 0.1 * bound * after);
      }
    }
  }
}

DoubleMatrix matrix_from(Engine& engine, const Shape& shape, ConstView view) {
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  engine.exec().download(values.data(), view);
  return {shape[0], shape[1], {values.begin(), values.end()}};
}

// The gradients are those of the saved form, a plain adapter of twice the rank, where they reach what trains.
TEST_P(TrainAdapterInit, PissaTrainsTheFirstHalfOfWhatItSaves) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  NewAdapter adapter(fixture, GetParam(), DType::f32, linear + "lora_init: pissa");
  adapter.run.engine->train_step(batch, 1, 1e-3);
  TempFolder out;
  save_adapter(*parallel::single_process(), *adapter.run.engine, *adapter.run.adapter, out.path());
  Console console(true);
  const EngineOptions options = engine_options(Purpose::gradients, {GetParam(), DType::f32}, adapter.bounds);
  const auto plain = load_engine(fixture.folder, fixture.config, options, console, out.path());
  const auto gradients = [&](Engine& engine) {
    engine.gradients(batch);
    std::map<std::string, DoubleMatrix> result;
    for (weights::Weight* weight : engine.decoder().weights()) {
      weight->for_each_own(
          [&](weights::Parameter& p) { result.emplace(p.name, matrix_from(engine, p.shape, p.grad)); });
    }
    return result;
  };
  const auto expected = gradients(*plain), actual = gradients(*adapter.run.engine);
  ASSERT_FALSE(actual.empty());
  for (const auto& [name, mine] : actual) {
    const DoubleMatrix& theirs = expected.at(name);
    DoubleMatrix same = mine;
    for (std::int64_t r = 0; r < mine.rows; ++r) {
      const std::int64_t row = name.ends_with(".lora_a") ? r / 4 * 8 + r % 4 : r;  // of 8 rows the first 4
      for (std::int64_t c = 0; c < mine.cols; ++c) same(r, c) = theirs(row, c);
    }
    EXPECT_LE(norm(difference(mine, same)), 1e-5 * norm(same)) << name;
  }
}

// What the script writes down of a matrix, and by how much PEFT misses it, which finds singular vectors in fp32.
void expect_matrix(const DoubleMatrix& matrix, const nlohmann::json& expected) {
  double probe = 0;
  for (std::size_t i = 0; i < matrix.data.size(); ++i) probe += matrix.data[i] * std::cos(static_cast<double>(i));
  const double size = expected[0], bound = std::max(1e-5, 4 * expected[2].get<double>());
  EXPECT_NEAR(norm(matrix), size, bound * size);
  EXPECT_NEAR(probe, expected[1].get<double>(), bound * size);
}

// PEFT's own, module by module.
TEST_P(TrainAdapterInit, PissaBeginsAsPeftsDoes) {
  const auto expected = nlohmann::json::parse(read_text(source_folder() / "tests/golden/pissa.json"));
  for (const auto& [name, one] : expected.at("cases").items()) {
    const Fixture fixture(model_fixture(name));
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    NewAdapter adapter(fixture, GetParam(), DType::f32,
                       linear + "lora_init: pissa\n" + (one.at("rslora").get<bool>() ? "peft_use_rslora: true" : ""));
    Engine& engine = *adapter.run.engine;
    engine.gradients(batch);
    std::size_t seen = 0;
    for (weights::Weight* weight : engine.decoder().weights()) {
      DoubleMatrix a, da;  // of all parts, four rows each
      std::int64_t part = 0;
      weight->for_each_own([&](weights::Parameter& p) {
        const DoubleMatrix value = matrix_from(engine, p.shape, p.value),
                           gradient = matrix_from(engine, p.shape, p.grad);
        if (p.name.ends_with(".lora_a")) {
          a = value, da = gradient;
          return;
        }
        std::string module = weight->parameter().parts[static_cast<std::size_t>(part)].checkpoint_name;
        module.resize(module.rfind('.'));
        SCOPED_TRACE(name + ", " + module);
        const DoubleMatrix mine = rows_of(a, 4 * part, 4 * part + 4), dmine = rows_of(da, 4 * part, 4 * part + 4);
        expect_matrix(product(value, mine), one.at("start").at(module));
        expect_matrix(sum(product(gradient, mine), product(value, dmine)), one.at("gradients").at(module));
        ++part, ++seen;
      });
    }
    EXPECT_EQ(seen, one.at("start").size()) << name;
  }
}

// And step by step.
TEST_P(TrainAdapterInit, PissaLearnsAsPeftsDoes) {
  const auto expected = nlohmann::json::parse(read_text(source_folder() / "tests/golden/pissa.json"));
  for (const auto& [name, one] : expected.at("cases").items()) {
    SCOPED_TRACE(name);
    const Fixture fixture(model_fixture(name));
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    const std::string rslora = one.at("rslora").get<bool>() ? "peft_use_rslora: true\n" : "";
    NewAdapter adapter(fixture, GetParam(), DType::f32,
                       "lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]\n"
                       "lora_init: pissa\nweight_decay: 0\n" +
                           rslora);
    std::int64_t step = 0;
    for (const double loss : one.at("losses")) {
      EXPECT_NEAR(adapter.run.engine->train_step(batch, ++step, 1e-3).loss, loss, 1e-5 * loss) << step;
    }
  }
}

TEST_P(TrainAdapterInit, PissaNeedsRoomForTwiceTheRank) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  try {
    NewAdapter adapter(fixture, GetParam(), DType::f32, linear + "lora_init: pissa", {}, 11);
    FAIL() << "a matrix of fewer than 22 rows";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("lora_r: 11: with lora_init: pissa"));
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainAdapterInit, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::train
