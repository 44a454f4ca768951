#include <gmock/gmock.h>

#include "io/file.h"
#include "osft/calibration.h"
#include "osft/find_bases.h"
#include "support/device_tensors.h"
#include "support/directions.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/session.h"
#include "weights/rank.h"

namespace inlay::testing {
namespace {

using ops::reference::product;
using ops::reference::transposed;
using osft::BasisStore;
using osft::FoundBases;
using train::Engine;
using train::EngineOptions;

// A fixture's model under OSFT, its directions found on the fixture's own documents.
struct OsftRun {
  OsftRun(const Fixture& fixture, Device device, DType dtype, const std::string& osft, std::int64_t host_layers = 0,
          std::int64_t micro_batches = 1) {
    for (const Document& d : fixture.documents) tokens += static_cast<std::int64_t>(d.input_ids.size());
    options = options::parse_options(
        "base_model: " + fixture.folder.string() + "\noutput_dir: nowhere\ndatasets: [" +
            (fixture.folder / "data.jsonl").string() +
            "]\nlearning_rate: 1e-3\nsequence_len: 64\ngradient_accumulation_steps: " + std::to_string(micro_batches) +
            "\nosft: {cache: off, calibration: {data: " + (fixture.folder / "data.jsonl").string() + "}, " + osft +
            "}\n",
        "test", {});
    const train::BatchBounds bounds{.tokens = tokens, .document = 64};
    engine_options = train::engine_options(options, bounds);
    engine_options.device = device;
    engine_options.compute = dtype;
    engine_options.deterministic = true;
    engine_options.host_layers = host_layers;
    engine_options.optimizer.max_grad_norm = 0;
    Console console(true);
    found = osft::find_bases(train::search_inputs(options, fixture.config, device, console), fixture.config, device,
                             dtype, train::step_shape(options, bounds), console);
    engine_options.weights = std::make_shared<weights::WeightPlan>(osft::weight_plan(found.layout));
    engine = Engine::create(fixture.config, engine_options);
    engine->load(io::Checkpoint(fixture.folder));
    engine->start(&found.bases);
  }

  std::int64_t tokens = 0;
  options::TrainOptions options;
  EngineOptions engine_options;
  osft::FoundBases found;
  std::unique_ptr<Engine> engine;
};

// The weights that train in a subspace.
std::vector<weights::SubspaceWeight*> subspaces(Engine& engine) {
  std::vector<weights::SubspaceWeight*> result;
  for (weights::Weight* weight : engine.decoder().weights()) {
    if (auto* subspace = dynamic_cast<weights::SubspaceWeight*>(weight)) result.push_back(subspace);
  }
  return result;
}

DoubleMatrix stored(const osft::BasisStore& store, const std::string& name) {
  const osft::BasisStore::Tensor& tensor = store.at(name);
  DoubleMatrix rows(tensor.shape[0], tensor.shape[1]);
  EXPECT_EQ(tensor.dtype, DType::f32);
  const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
  rows.data.assign(values, values + rows.data.size());
  return rows;
}

std::vector<double> read(Engine& engine, ConstView view) {
  std::vector<double> result;
  if (view.dtype() == DType::f32) {
    std::vector<float> host(static_cast<std::size_t>(view.size()));
    engine.exec().download(host.data(), view);
    result.assign(host.begin(), host.end());
  } else {
    std::vector<bf16> host(static_cast<std::size_t>(view.size()));
    engine.exec().download(host.data(), view);
    for (const bf16 value : host) result.push_back(static_cast<double>(static_cast<float>(value)));
  }
  return result;
}

class TrainOsft : public ::testing::TestWithParam<Device> {};

const char* both_bases[] = {"basis: activations, unfreeze_rank_ratio: 0.4",
                            "basis: activations, unfreeze_rank_ratio: 0.7", "basis: weights, unfreeze_rank_ratio: 0.4",
                            "basis: weights, unfreeze_rank_ratio: 0.7"};

TEST_P(TrainOsft, StepZeroIsTheBaseModelBitForBit) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto plain = fixture.engine({.device = GetParam(), .compute = dtype, .training = false});
      const double expected = plain->evaluate(batch[0]).loss;
      for (const char* osft : both_bases) {
        SCOPED_TRACE(folder.filename().string() + " " + osft);
        // What trains in full is rounded as masters are (halves away from zero), what does not as anywhere (to even):
        // for equal bits of a model whose fp16 weights fall between two bf16 numbers, nothing else trains here.
        OsftRun run(fixture, GetParam(), dtype, std::string(osft) + ", freeze: [embeddings, head, norms, biases]");
        EXPECT_EQ(run.engine->evaluate(batch[0]).loss, expected);
        run.engine->decoder().update_weights(run.engine->exec());
        EXPECT_EQ(run.engine->evaluate(batch[0]).loss, expected);
      }
    }
  }
}

// What lives on the host is W₀; the change is added to it on the device whenever it has come.
TEST_P(TrainOsft, LayersOnTheHostTrainToTheSameBits) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const std::vector<PackedBatch> batches = {pack(std::span(fixture.documents).first(2)),
                                              pack(std::span(fixture.documents).subspan(2))};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* osft : both_bases) {
        SCOPED_TRACE(folder.filename().string() + " " + osft);
        const auto train = [&](std::int64_t host_layers) {
          OsftRun run(fixture, GetParam(), dtype, osft, host_layers);
          std::vector<double> losses;
          for (std::int64_t step = 1; step <= 3; ++step) {
            losses.push_back(run.engine->train_step(batches, step, 1e-2).loss);
            losses.push_back(run.engine->evaluate(batches[1]).loss);
          }
          return losses;
        };
        EXPECT_EQ(train(fixture.config.layer_count()), train(0));
      }
    }
  }
}

// dB = G·Vᵀ and D's gradient is G, with G the gradient of plain fine-tuning, for every target of every family.
TEST_P(TrainOsft, GradientsOfBasisActivationsAreThoseOfPlainFineTuningSeenInTheSubspace) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    const auto plain = fixture.engine({.device = GetParam(), .compute = DType::f32, .optimizer_state = false});
    plain->gradients(batch);
    std::map<std::string, DoubleMatrix> gradients;
    plain->decoder().parameters().for_each([&](weights::Parameter& p) {
      if (p.shape.rank() == 2) gradients[p.name] = {p.shape[0], p.shape[1], read(*plain, p.grad)};
    });
    std::vector<std::string> cases = {both_bases[0], both_bases[1]};
    // An expert that differs from the others: they are no longer one product.
    if (folder.filename() == "mixtral_balance") {
      cases.push_back(std::string(both_bases[0]) + ", ratios: {'*.experts.1.w2.weight': 0.8}");
    }
    for (const std::string& osft : cases) {
      SCOPED_TRACE(folder.filename().string() + " " + osft);
      OsftRun run(fixture, GetParam(), DType::f32, osft);
      run.engine->gradients(batch);
      for (weights::SubspaceWeight* weight : subspaces(*run.engine)) {
        const auto& input = dynamic_cast<weights::InputSubspace&>(*weight);
        const std::string& name = weight->parameter().name;
        DoubleMatrix expected = gradients.at(name);
        // An expert that saw few tokens has next to nothing left in its free directions: of G's size is what counts.
        const double size = norm(expected);
        if (!input.layout().stores_frozen()) {
          expected = product(expected, transposed(stored(run.found.bases, name + ".free")));
        }
        weight->for_each_own([&](weights::Parameter& p) {
          const DoubleMatrix actual{p.shape[0], p.shape[1], read(*run.engine, p.grad)};
          EXPECT_LE(norm(difference(actual, expected)), 1e-5 * size) << name;
        });
      }
    }
  }
}

TEST_P(TrainOsft, OutputsOnCalibratedInputsDoNotChange) {
  const Fixture fixture(model_fixtures().front());
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  for (const char* ratio : {"0.3", "0.7"}) {
    OsftRun run(fixture, GetParam(), DType::f32, std::string("basis: activations, unfreeze_rank_ratio: ") + ratio);
    const auto base = fixture.engine({.device = GetParam(), .compute = DType::f32});
    for (int step = 1; step <= 10; ++step) run.engine->train_step(batch, step, 3e-3);
    EXPECT_LT(run.engine->leak(), 1e-6);
    std::map<std::string, std::vector<double>> before;
    base->decoder().parameters().for_each([&](weights::Parameter& p) { before[p.name] = read(*base, p.value); });
    for (weights::SubspaceWeight* weight : subspaces(*run.engine)) {
      const weights::Parameter& p = weight->parameter();
      const DoubleMatrix w0{p.shape[0], p.shape[1], before.at(p.name)};
      const DoubleMatrix change = difference({p.shape[0], p.shape[1], read(*run.engine, p.value)}, w0);
      EXPECT_GT(norm(change), 1e-3 * norm(w0)) << p.name;
      const auto& input = dynamic_cast<weights::InputSubspace&>(*weight);
      if (input.layout().stores_frozen()) {
        const DoubleMatrix frozen = stored(run.found.bases, p.name + ".frozen");
        EXPECT_LE(largest(product(change, transposed(frozen))), 0x1p-22 * norm(w0)) << p.name;
      } else {  // all of the change lies in the free directions
        const DoubleMatrix free = stored(run.found.bases, p.name + ".free");
        const DoubleMatrix inside = product(product(change, transposed(free)), free);
        EXPECT_LE(norm(difference(change, inside)), 0x1p-21 * norm(w0)) << p.name;
      }
    }
  }
}

// A tensor as it would be saved in fp32.
DoubleMatrix saved(Engine& engine, const io::Checkpoint& base, const weights::Parameter& p, const weights::Part& part) {
  DoubleMatrix result(0, p.shape[1]);
  model::read_part(engine.exec(), p, part, DType::f32, &base, [&](std::span<const std::byte> bytes) {
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    result.data.insert(result.data.end(), values, values + bytes.size() / sizeof(float));
  });
  result.rows = part.rows;
  return result;
}

// The share of a change's rows that lies in frozen directions, by the fp32 directions that the search left.
double share_in_frozen(const DoubleMatrix& change, const BasisStore& bases, const std::string& frozen,
                       const std::string& free) {
  if (norm(change) == 0) return 0;
  if (bases.find(frozen) != nullptr) return norm(along(change, stored(bases, frozen))) / norm(change);
  const DoubleMatrix rows = stored(bases, free);
  return norm(difference(change, along(change, rows))) / norm(change);
}

// Whatever the compute dtype: tensors that share an input, a tied head with rows that do not train, experts.
TEST_P(TrainOsft, WhatIsSavedHasNothingNewInFrozenDirections) {
  for (const char* name : {"llama_linear_sharded", "llama_llama3_tied", "mixtral_balance"}) {
    const Fixture fixture(model_fixture(name));
    const io::Checkpoint base(fixture.folder);
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    for (const char* more : {"", ", basis_on: host"}) {
      for (const char* osft : both_bases) {
        SCOPED_TRACE(fmt::format("{} {}{}", name, osft, more));
        OsftRun run(fixture, GetParam(), DType::bf16, std::string(osft) + more);
        std::map<const weights::Part*, DoubleMatrix> before;
        for (weights::SubspaceWeight* weight : subspaces(*run.engine)) {
          for (const weights::Part& part : weight->parameter().parts) {
            before[&part] = saved(*run.engine, base, weight->parameter(), part);
          }
        }
        for (int step = 1; step <= 20; ++step) run.engine->train_step(batch, step, 3e-3);
        double moved = 0;
        for (weights::SubspaceWeight* weight : subspaces(*run.engine)) {
          const weights::Parameter& p = weight->parameter();
          for (std::size_t i = 0; i < p.parts.size(); ++i) {
            const DoubleMatrix& start = before.at(&p.parts[i]);
            const DoubleMatrix change = difference(saved(*run.engine, base, p, p.parts[i]), start);
            moved = std::max(moved, norm(change) / norm(start));
            // Saving adds the change to W₀ in fp32, which rounds by 2⁻²⁴ of every entry at most.
            const double bound = 1e-6 + 0x1p-24 * norm(start) / std::max(norm(change), 1e-30);
            if (dynamic_cast<weights::InputSubspace*>(weight) != nullptr) {
              EXPECT_LE(share_in_frozen(change, run.found.bases, p.name + ".frozen", p.name + ".free"), bound)
                  << p.name;
              continue;
            }
            const std::string prefix = fmt::format("{}.{}.", p.name, i);
            EXPECT_LE(share_in_frozen(change, run.found.bases, prefix + "v.frozen", prefix + "v"), bound) << prefix;
            EXPECT_LE(share_in_frozen(transposed(change), run.found.bases, prefix + "u.frozen", prefix + "u"), bound)
                << prefix;
          }
        }
        EXPECT_GT(moved, 0.01);
        EXPECT_LE(run.engine->leak(), 1e-6);
      }
    }
  }
}

TEST_P(TrainOsft, EverythingUnfrozenIsPlainFineTuning) {
  const Fixture fixture(model_fixtures().front());
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  EngineOptions plain_options = {.device = GetParam(), .compute = DType::f32};
  plain_options.optimizer.max_grad_norm = 0;
  const auto plain = fixture.engine(plain_options);
  OsftRun run(fixture, GetParam(), DType::f32,
              "basis: activations, unfreeze_rank_ratio: 1.0, tokens: all, freeze: none");
  for (int step = 1; step <= 5; ++step) {
    const double expected = plain->train_step(batch, step, 1e-3).loss;
    EXPECT_NEAR(run.engine->train_step(batch, step, 1e-3).loss, expected, 1e-5 * expected) << step;
  }
  // With basis weights no direction is frozen either, and nothing is projected.
  OsftRun factors(fixture, GetParam(), DType::f32, "basis: weights, unfreeze_rank_ratio: 1.0");
  for (const auto& [name, ranks] : factors.found.layout.targets) {
    for (const auto& part : std::get<weights::FactorLayout>(ranks).parts) EXPECT_EQ(part.frozen, 0) << name;
  }
  const train::StepResult result = factors.engine->train_step(batch, 1, 1e-3);
  EXPECT_NEAR(result.grad_norm, result.raw_grad_norm, 1e-5 * result.raw_grad_norm);
}

// The experts of a layer take the first two together, and the third one by one.
TEST_P(TrainOsft, RoutesTrainAlike) {
  for (const auto& folder :
       {model_fixtures().front(), model_fixture("mixtral_balance"), model_fixture("gpt_oss_balance")}) {
    SCOPED_TRACE(folder);
    const Fixture fixture(folder);
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    // A second micro-batch makes the dense route keep its gradients.
    for (const std::vector<PackedBatch>& batches : {batch, std::vector<PackedBatch>{batch[0], batch[0]}}) {
      std::vector<double> losses;
      for (const char* route : {"direct", "dense", "factored"}) {
        OsftRun run(fixture, GetParam(), DType::f32,
                    std::string("basis: weights, unfreeze_rank_ratio: 0.5, route: ") + route, 0,
                    static_cast<std::int64_t>(batches.size()));
        double loss = 0;
        for (int step = 1; step <= 5; ++step) loss = run.engine->train_step(batches, step, 1e-3).loss;
        losses.push_back(loss);
        EXPECT_LT(run.engine->leak(), 1e-6) << route;
      }
      EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
      EXPECT_NEAR(losses[2], losses[0], 1e-5 * losses[0]);
    }
  }
}

TEST_P(TrainOsft, ASavedModelIsTheTrainedOne) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const std::vector<PackedBatch> batch = {pack(fixture.documents)};
    for (const char* osft : both_bases) {
      SCOPED_TRACE(folder.filename().string() + " " + osft);
      TempFolder out;
      OsftRun run(fixture, GetParam(), DType::f32, osft);
      for (int step = 1; step <= 3; ++step) run.engine->train_step(batch, step, 1e-3);
      train::save_model(*parallel::single_process(), *run.engine, {fixture.folder, {}}, out / "model");
      EngineOptions options = {.device = GetParam(), .compute = DType::f32, .training = false};
      options.max_tokens = run.tokens;
      options.max_document = 64;
      const auto loaded = Engine::create(model::load_config(out / "model"), options);
      loaded->load(io::Checkpoint(out / "model"));
      const double expected = run.engine->evaluate(batch[0]).loss;
      // A checkpoint keeps its dtype: 16-bit ones round what was learned.
      const double bound = fixture.config.dtype == DType::f32 ? 1e-6 : 0x1p-8;
      EXPECT_NEAR(loaded->evaluate(batch[0]).loss, expected, bound * expected);
    }
  }
}

TEST_P(TrainOsft, ThePlanIsThePeak) {
  Fixture fixture(model_fixtures().front());
  for (Document& document : fixture.documents) document.labels = document.input_ids;
  const std::vector<PackedBatch> batch = {pack(fixture.documents)};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* more : {"", ", basis_on: host", ", freeze: [embeddings, norms]", ", ranks: adaptive"}) {
      for (const char* osft : both_bases) {
        SCOPED_TRACE(std::string(osft) + more);
        OsftRun run(fixture, GetParam(), dtype, std::string(osft) + more);
        const std::size_t planned = Engine::plan(fixture.config, run.engine_options).device_peak;
        // Everything a run does: on a model as small as this one, saving may be what needs the most.
        TempFolder out;
        run.engine->train_step(batch, 1, 1e-3);
        run.engine->evaluate(batch[0]);
        run.engine->leak();
        train::save_model(*parallel::single_process(), *run.engine, {fixture.folder, {}}, out / "model");
        EXPECT_LE(run.engine->exec().arena().peak(), planned);
        EXPECT_GE(static_cast<double>(run.engine->exec().arena().peak()), 0.99 * static_cast<double>(planned));
      }
    }
  }
}

TEST_P(TrainOsft, AdaptiveRanksFreezeMoreWhereALayerChangesItsInputLess) {
  const Fixture fixture(model_fixtures().front());
  const osft::OsftOptions options = [] {
    osft::OsftOptions o;
    o.enabled = true;
    o.basis = osft::BasisKind::weights;
    o.unfreeze_rank_ratio = 0.5;
    o.adaptive_floor = 0.1;
    return o;
  }();
  const osft::OsftTargets targets(options, fixture.config);
  std::vector<double> importance(static_cast<std::size_t>(fixture.config.layer_count()), 1.0);
  importance.front() = 1.5;
  importance.back() = 0.5;
  const auto frozen = [&](const std::vector<double>& by_layer, std::int64_t layer) {
    const auto layout = osft::nominal_layout(targets, fixture.config, {.tokens = 64}, by_layer);
    return std::get<weights::FactorLayout>(*layout.find(fmt::format("layers.{}.mlp.down", layer))).parts[0].frozen;
  };
  const std::int64_t last = fixture.config.layer_count() - 1, full = fixture.config.hidden;
  // k = R·(m + I·(t − m)), then aligned.
  EXPECT_EQ(frozen(importance, 0), full - weights::trainable_rank(1 - (0.1 + 1.5 * 0.4), full));
  EXPECT_EQ(frozen(importance, last), full - weights::trainable_rank(1 - (0.1 + 0.5 * 0.4), full));
  EXPECT_EQ(frozen({}, 0), full - weights::trainable_rank(0.5, full));
}

TEST_P(TrainOsft, ALayersImportanceIsTheMeanCosineOfItsInputAndOutput) {
  TestBench bench(GetParam());
  const View x = bench.tensor(DType::f32, {2, 2}, {1, 0, 0, 3}), same = bench.tensor(DType::f32, {2, 2}, {5, 0, 0, 1});
  const View across = bench.tensor(DType::f32, {2, 2}, {0, 2, 1, 0}),
             half = bench.tensor(DType::f32, {2, 2}, {2, 0, 7, 0});
  osft::LayerImportance importance(3);
  importance.layer_output(bench.exec, 0, x, same);    // cosines 1 and 1
  importance.layer_output(bench.exec, 1, x, across);  // 0 and 0
  importance.layer_output(bench.exec, 2, x, half);    // 1 and 0
  const std::vector<double> relative = importance.relative(*parallel::single_process());
  ASSERT_EQ(relative.size(), 3u);
  EXPECT_NEAR(relative[0], 2.0, 1e-6);
  EXPECT_NEAR(relative[1], 0.0, 1e-6);
  EXPECT_NEAR(relative[2], 1.0, 1e-6);
}

// What projection takes away must not count: the gradient that goes into the moments has the norm that was allowed.
TEST_P(TrainOsft, GradientsAreClippedAfterTheyAreProjected) {
  const Fixture fixture(model_fixtures().front());
  for (const char* basis :
       {"basis: activations, unfreeze_rank_ratio: 0.4", "basis: weights, unfreeze_rank_ratio: 0.4"}) {
    OsftRun run(fixture, GetParam(), DType::f32, basis);
    const std::vector<PackedBatch> batches = batches_in_order(fixture.documents, run.tokens);
    EngineOptions clipped = run.engine_options;
    clipped.optimizer.max_grad_norm = 1e-3;
    const auto engine = Engine::create(fixture.config, clipped);
    engine->load(io::Checkpoint(fixture.folder));
    engine->start(&run.found.bases);
    const train::StepResult step = engine->train_step(batches, 1, 1e-3);
    ASSERT_GT(step.grad_norm, 1e-3);
    if (std::string_view(basis).starts_with("basis: weights")) {
      EXPECT_GT(step.raw_grad_norm, 1.01 * step.grad_norm);  // so that the order can be seen at all
    }
    double sum = 0;
    engine->optimizer().for_each_state(engine->exec(), true, [&](const train::StateTensor& state) {
      if (!state.name.ends_with(".m")) return;
      for (const double value : read(*engine, state.share)) sum += value * value;
    });
    const double beta1 = clipped.optimizer.beta1;
    EXPECT_NEAR(std::sqrt(sum), (1 - beta1) * 1e-3, 1e-5 * 1e-3) << basis;
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainOsft, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
