#include <gtest/gtest.h>

#include <mutex>

#include "core/console.h"
#include "osft/find_bases.h"
#include "support/adapters.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/thread_ranks.h"
#include "train/adapters.h"
#include "train/deal.h"
#include "train/session.h"
#include "weights/masters.h"

// A run of many processes comes to what a run of one comes to with the same steps, whatever each of them keeps. The
// ranks are threads here; tests/cli does the same with real processes.
namespace inlay::testing {
namespace {

using parallel::Mesh;
using parallel::Zero;
using train::Engine;
using train::EngineOptions;

constexpr Zero stages[] = {Zero::none, Zero::state, Zero::gradients, Zero::weights};

// What a run trains, and how its engines are made.
struct Subject {
  const Fixture* fixture;
  EngineOptions options;
  std::function<void(Engine&)> start = [](Engine&) {};
  std::int64_t steps = 3;

  std::unique_ptr<Engine> engine(const Mesh& mesh) const {
    EngineOptions mine = options;
    mine.mesh = mesh;
    std::unique_ptr<Engine> engine = fixture->engine(mine);
    start(*engine);
    return engine;
  }
  // Unequal ones, so that ranks have different numbers of them: three for a step.
  std::vector<PackedBatch> micro_batches() const {
    const std::span<const Document> documents = fixture->documents;
    return {pack(documents.first(1)), pack(documents.subspan(1, 1)), pack(documents.subspan(2))};
  }
};

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;  // what the layers multiply by
  std::map<std::string, std::vector<double>> factors;  // what trains in their place
  double leak = 0;
};

// The rows that this process has, put where they belong.
void collect(Engine& engine, Outcome& outcome) {
  engine.optimizer().settle();
  const auto put = [&](const weights::Parameter& p, std::vector<double>& all) {
    all.resize(static_cast<std::size_t>(p.size()));
    const std::vector<float> mine = weights::read_master(engine.exec(), p, p.first_row(), p.end_row());
    std::copy(mine.begin(), mine.end(), all.begin() + p.first_row() * (p.size() / p.rows()));
  };
  engine.decoder().parameters().for_each([&](weights::Parameter& p) { put(p, outcome.weights[p.name]); });
  for (weights::Weight* weight : engine.decoder().weights()) {
    weight->for_each_own([&](weights::Parameter& p) { put(p, outcome.factors[p.name]); });
  }
}

Outcome alone(const Subject& subject) {
  Outcome outcome;
  const auto engine = subject.engine({});
  for (std::int64_t step = 1; step <= subject.steps; ++step) {
    const train::StepResult result = engine->train_step(subject.micro_batches(), step, 1e-3);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  outcome.leak = engine->leak();
  collect(*engine, outcome);
  return outcome;
}

// How ranks divide what they keep: among all of them, or in nodes of so many.
Mesh mesh_of(const std::shared_ptr<parallel::Communicator>& ranks, Zero zero, int node) {
  Mesh mesh{.all = ranks, .shards = ranks, .zero = zero};
  if (node > 0) {
    mesh.shards = ranks->split(ranks->rank() / node);
    mesh.replicas = ranks->split(ranks->rank() % node);
  }
  return mesh;
}

Outcome among(int count, const Subject& subject, Zero zero, int node = 0) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(count, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    const auto engine = subject.engine(mesh_of(ranks, zero, node));
    std::vector<double> losses, norms;
    for (std::int64_t step = 1; step <= subject.steps; ++step) {
      std::vector<PackedBatch> mine;
      const std::vector<PackedBatch> all = subject.micro_batches();
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int>(i) % count == ranks->rank()) mine.push_back(all[i]);
      }
      train::StepShare share{.first_micro_batch = ranks->rank(),
                             .passes = (static_cast<std::int64_t>(all.size()) + count - 1) / count};
      for (const PackedBatch& batch : all) {
        share.tokens += batch.token_count();
        share.valid += batch.valid_count();
        share.weight += batch.valid_weight();
      }
      const train::StepResult result = engine->train_step(mine, step, 1e-3, share);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
    }
    const double leak = engine->leak();
    const std::lock_guard lock(mutex);
    collect(*engine, outcome);
    if (ranks->leads()) {
      outcome.losses = losses;
      outcome.norms = norms;
      outcome.leak = leak;
    }
  });
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected, double tolerance) {
  EXPECT_LE(relative_error(actual.losses, expected.losses), tolerance);
  EXPECT_LE(relative_error(actual.norms, expected.norms), tolerance);
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [name, values] : expected.weights) {
    EXPECT_LE(relative_error(actual.weights.at(name), values), tolerance) << name;
  }
  // These have grown from zero: rounding errors of gradients are a larger part of them.
  ASSERT_EQ(actual.factors.size(), expected.factors.size());
  for (const auto& [name, values] : expected.factors) {
    EXPECT_LE(relative_error(actual.factors.at(name), values), 10 * tolerance) << name;
  }
}

EngineOptions plain_options() {
  EngineOptions options = {.policy = model::ActivationPolicy::parse("recompute_mlp")};
  options.optimizer.weight_decay = 0.1;
  options.optimizer.max_grad_norm = 0.5;
  // A bias of keys has a gradient of zero, so that its rounding errors are all there is: AdamW must not blow them up.
  options.optimizer.eps = 1e-5;
  return options;
}

TEST(TrainManyRanks, EveryStageOfEveryFamilyTrainsAsOneProcessDoes) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const Subject subject{.fixture = &fixture, .options = plain_options()};
    const Outcome expected = alone(subject);
    for (const Zero zero : stages) {
      for (const int ranks : {2, 3}) {
        SCOPED_TRACE(fmt::format("{}, ZeRO {}, {} ranks", folder.filename().string(), static_cast<int>(zero), ranks));
        expect_same(among(ranks, subject, zero), expected, 1e-6);
      }
    }
  }
}

TEST(TrainManyRanks, RanksWithoutAMicroBatchTakePart) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  const Subject subject{.fixture = &fixture, .options = plain_options()};
  const Outcome expected = alone(subject);
  for (const Zero zero : stages) {
    SCOPED_TRACE(static_cast<int>(zero));
    expect_same(among(8, subject, zero), expected, 1e-6);
  }
}

TEST(TrainManyRanks, TheSameBitsTwice) {
  const Fixture fixture(model_fixture("qwen3_moe_mixed"));
  const Subject subject{.fixture = &fixture, .options = plain_options()};
  for (const Zero zero : stages) {
    const Outcome once = among(3, subject, zero), again = among(3, subject, zero);
    EXPECT_EQ(once.losses, again.losses);
    EXPECT_EQ(once.weights, again.weights);
  }
}

TEST(TrainManyRanks, ShardsWithinANodeAndReplicasOverNodes) {
  const Fixture fixture(model_fixture("qwen2_yarn_bf16"));
  const Subject subject{.fixture = &fixture, .options = plain_options()};
  const Outcome expected = alone(subject);
  for (const Zero zero : stages) {
    SCOPED_TRACE(static_cast<int>(zero));
    expect_same(among(4, subject, zero, 2), expected, 1e-6);
  }
}

TEST(TrainManyRanks, LayersOnTheHostAreCutInEveryStage) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  Subject subject{.fixture = &fixture, .options = plain_options()};
  const Outcome expected = alone(subject);
  subject.options.host_layers = 1;
  for (const Zero zero : stages) {
    SCOPED_TRACE(static_cast<int>(zero));
    expect_same(among(2, subject, zero), expected, 1e-6);
    expect_same(among(4, subject, zero), expected, 1e-6);
  }
}

TEST(TrainManyRanks, Bf16KeepsItsMastersWhereRowsAreStepped) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  Subject subject{.fixture = &fixture, .options = plain_options()};
  subject.options.compute = DType::bf16;
  const Outcome expected = alone(subject);
  for (const Zero zero : stages) {
    SCOPED_TRACE(static_cast<int>(zero));
    expect_same(among(3, subject, zero), expected, 1e-6);
  }
}

TEST(TrainManyRanks, OsftOfBothBasesTrainsAsOneProcessDoes) {
  for (const char* name : {"llama_llama3_tied", "qwen3_moe_mixed", "gpt_oss_balance"}) {
    const Fixture fixture(model_fixture(name));
    for (const char* osft :
         {"basis: activations, unfreeze_rank_ratio: 0.4", "basis: activations, unfreeze_rank_ratio: 0.7",
          "basis: weights, unfreeze_rank_ratio: 0.4", "basis: weights, unfreeze_rank_ratio: 0.7"}) {
      const std::string data = (fixture.folder / "data.jsonl").string();
      const options::TrainOptions options = options::parse_options(
          fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [{}]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                      "gradient_accumulation_steps: 3\nosft: {{cache: off, calibration: {{data: {}}}, {}}}\n",
                      fixture.folder.string(), data, data, osft),
          "test", {});
      const train::BatchBounds bounds{.tokens = 64, .document = 64};
      Console console(true);
      const osft::FoundBases found =
          osft::find_bases(train::search_inputs(options, fixture.config, Device::cpu, console), fixture.config,
                           Device::cpu, DType::f32, train::step_shape(options, bounds), console);
      Subject subject{.fixture = &fixture, .options = plain_options()};
      subject.options.weights = std::make_shared<weights::WeightPlan>(osft::weight_plan(found.layout));
      subject.start = [&](Engine& engine) { engine.start(&found.bases); };
      const Outcome expected = alone(subject);
      for (const Zero zero : stages) {
        SCOPED_TRACE(fmt::format("{}, {}, ZeRO {}", name, osft, static_cast<int>(zero)));
        const Outcome outcome = among(3, subject, zero);
        expect_same(outcome, expected, 1e-6);
        EXPECT_LE(outcome.leak, 1e-6);
        EXPECT_LE(expected.leak, 1e-6);
      }
    }
  }
}

// Documents are dealt by the plan, without asking the others: a plan of a rank's own rows would deal them otherwise.
TEST(TrainManyRanks, PlanAlikeWhateverTheirRows) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  for (const char* saving : {"", "save_steps: 1\n", "save_steps: 1\nsave_only_model: true\n"}) {
    SCOPED_TRACE(saving);
    const options::TrainOptions options = options::parse_options(
        fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                    "device: cpu\ndtype: fp32\nparallel: {{zero: 3}}\nmemory: {{host_layers: 1}}\n{}",
                    fixture.folder.string(), saving),
        "test", {});
    constexpr int count = 3;
    std::vector<train::MemoryPlan> plans(count);
    run_ranks(count, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
      EngineOptions engine = train::engine_options(options, {.tokens = 64, .document = 64});
      engine.mesh = mesh_of(ranks, Zero::none, 0);
      plans[static_cast<std::size_t>(ranks->rank())] = train::resolve_memory(options, fixture.config, engine).plan;
      EXPECT_EQ(engine.staged != train::Staged::nothing, *saving != '\0');
      EXPECT_EQ(engine.mesh.all, ranks);
    });
    for (const train::MemoryPlan& plan : plans) {
      EXPECT_EQ(plan.device_peak, plans[0].device_peak);
      EXPECT_EQ(plan.host_peak, plans[0].host_peak);
      EXPECT_EQ(train::deal_cost(plan).token, train::deal_cost(plans[0]).token);
      EXPECT_EQ(train::deal_cost(plan).square, train::deal_cost(plans[0]).square);
    }
  }
}

// Directions are those of one process, to the bit, whoever passed the text and found them. osft: keys beside the ratio,
// with a place for the text.
void expect_directions_of_one_process(const char* model, const std::string& osft, std::initializer_list<int> counts) {
  SCOPED_TRACE(fmt::format("{}, {}", model, osft));
  const Fixture fixture(model_fixture(model));
  const options::TrainOptions options = options::parse_options(
      fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                  "osft: {{cache: off, unfreeze_rank_ratio: 0.4, {}}}\n",
                  fixture.folder.string(), fmt::format(fmt::runtime(osft), (fixture.folder / "data.jsonl").string())),
      "test", {});
  const auto find = [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    Console console(true);
    osft::SearchInputs inputs = train::search_inputs(options, fixture.config, Device::cpu, console);
    inputs.ranks = ranks;
    return osft::find_bases(inputs, fixture.config, Device::cpu, DType::f32,
                            train::step_shape(options, {.tokens = 64, .document = 64}), console);
  };
  const std::string alone = find(parallel::single_process()).bases.fingerprint();
  for (const int count : counts) {
    run_ranks(count, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
      EXPECT_EQ(find(ranks).bases.fingerprint(), alone) << "rank " << ranks->rank() << " of " << count;
    });
  }
}

// Several batches: more documents than the fixtures have.
std::string long_text(const Fixture& fixture, const TempFolder& folder) {
  const std::string text = read_text(fixture.folder / "data.jsonl");
  std::string all;
  while (all.size() < 200 * text.size()) all += text;
  return folder.write("long.jsonl", all).string();
}

TEST(TrainManyRanks, RanksDivideTheSearchForDirections) {
  const std::string text = ", calibration: {{data: {}}}";
  expect_directions_of_one_process("qwen3_moe_mixed", "basis: activations" + text, {2, 3});
  expect_directions_of_one_process("llama_llama3_tied", "basis: activations, ranks: adaptive" + text, {2, 5});
  expect_directions_of_one_process("llama_llama3_tied", "basis: weights", {3});
  expect_directions_of_one_process("qwen3_moe_mixed", "basis: weights, ranks: adaptive" + text, {2, 3});
  // Fewer tokens than inputs are wide: their rows are kept.
  expect_directions_of_one_process("llama_llama3_tied", "calibration: {{samples: 3, length: 5, data: {}}}", {2, 3});
}

TEST(TrainManyRanks, RanksDivideTheTextOfTheSearch) {
  const TempFolder folder;
  for (const char* model : {"qwen3_moe_mixed", "llama_llama3_tied"}) {
    const std::string data = long_text(Fixture(model_fixture(model)), folder);
    for (const char* ranks : {"uniform", "adaptive"}) {
      expect_directions_of_one_process(
          model, fmt::format("ranks: {}, calibration: {{{{samples: 1000, data: {}}}}}", ranks, data), {2, 3});
    }
  }
}

// What the model writes itself is one text, too.
TEST(TrainManyRanks, RanksDivideWhatTheModelWrites) {
  expect_directions_of_one_process("qwen3_moe_mixed", "calibration: {{samples: 3, length: 16, data: [sample]}}",
                                   {2, 5});
  expect_directions_of_one_process("llama_llama3_tied", "calibration: {{samples: 200, length: 24, data: [{}, sample]}}",
                                   {2, 3});
}

// A rank whose nth exchange of things on the host fails.
class BrokenLink final : public parallel::Communicator {
 public:
  BrokenLink(std::shared_ptr<parallel::Communicator> ranks, int nth)
      : Communicator(ranks->rank(), ranks->size()), ranks_(std::move(ranks)), left_(nth) {}
  std::vector<std::string> exchange(std::string_view mine, std::string_view what) override {
    if (--left_ == 0) user_error("the link is down");
    return ranks_->exchange(mine, what);
  }
  std::shared_ptr<Communicator> split(int colour) override { return ranks_->split(colour); }

 protected:
  void do_all_reduce(parallel::Exec& exec, std::span<const View> tensors, std::string_view what) override {
    ranks_->all_reduce(exec, tensors, what);
  }
  void do_reduce_scatter(parallel::Exec& exec, std::span<const parallel::CutTensor> tensors,
                         std::string_view what) override {
    ranks_->reduce_scatter(exec, tensors, what);
  }
  void do_all_gather(parallel::Exec& exec, std::span<const parallel::CutTensor> tensors,
                     std::string_view what) override {
    ranks_->all_gather(exec, tensors, what);
  }
  void do_broadcast(parallel::Exec& exec, std::span<const View> tensors, int root, std::string_view what) override {
    ranks_->broadcast(exec, tensors, root, what);
  }
  void do_all_to_all(parallel::Exec& exec, View to, ConstView from, std::string_view what) override {
    ranks_->all_to_all(exec, to, from, what);
  }

 private:
  std::shared_ptr<parallel::Communicator> ranks_;
  int left_;
};

// Rank 1 fails between two exchanges of the search. What it has to say must not arrive as what the others ask for.
TEST(TrainManyRanks, AnErrorInTheMiddleOfTheSearchIsTheOneThatIsSeen) {
  const Fixture fixture(model_fixture("llama_llama3_tied"));
  for (const char* keys : {"basis: activations", "basis: weights, ranks: adaptive"}) {
    const options::TrainOptions options = options::parse_options(
        fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                    "osft: {{cache: off, unfreeze_rank_ratio: 0.4, {}, calibration: {{data: {}}}}}\n",
                    fixture.folder.string(), keys, (fixture.folder / "data.jsonl").string()),
        "test", {});
    for (int nth = 1; nth <= 5; ++nth) {
      SCOPED_TRACE(fmt::format("{}, exchange {}", keys, nth));
      std::string error;
      try {
        run_ranks(3, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
          Console console(true);
          osft::SearchInputs inputs = train::search_inputs(options, fixture.config, Device::cpu, console);
          inputs.ranks = ranks->rank() == 1 ? std::make_shared<BrokenLink>(ranks, nth) : ranks;
          osft::find_bases(inputs, fixture.config, Device::cpu, DType::f32,
                           train::step_shape(options, {.tokens = 64, .document = 64}), console);
        });
      } catch (const std::exception& seen) {
        error = seen.what();
      }
      EXPECT_EQ(error, "the link is down");
    }
  }
}

TEST(TrainManyRanks, AdaptersTrainOverABaseThatIsCut) {
  for (const auto& folder : adapter_fixtures()) {
    const Fixture fixture(base_of(folder));
    const adapter::AdapterFile file(folder, fixture.config);
    if (!file.targets().saved.empty()) continue;  // dense ones are tested above
    Subject subject{.fixture = &fixture, .options = plain_options(), .steps = 2};
    subject.options.weights = std::make_shared<weights::WeightPlan>(
        adapter::weight_plan(file.targets(), fixture.config, train::base_kind({}), {}));
    subject.options.saves_adapter = true;
    subject.start = [&](Engine& engine) {
      train::start_adapter(engine, file.targets(), adapter::start_from(file), &file);
    };
    const Outcome expected = alone(subject);
    for (const Zero zero : {Zero::state, Zero::weights}) {
      SCOPED_TRACE(fmt::format("{}, ZeRO {}", folder.filename().string(), static_cast<int>(zero)));
      expect_same(among(2, subject, zero), expected, 1e-6);
    }
  }
}

// What each process keeps gets less from stage to stage, and a plan knows it.
TEST(TrainManyRanks, EveryStageKeepsLess) {
  const Fixture fixture(model_fixture("llama_linear_sharded"));
  EngineOptions options = plain_options();
  options.max_tokens = options.max_document = 16;
  std::vector<std::size_t> peaks;
  for (const Zero zero : stages) {
    options.mesh.all = options.mesh.shards = parallel::planned_process(1, 4);
    options.mesh.zero = zero;
    const train::MemoryPlan plan = Engine::plan(fixture.config, options);
    const auto of = [&](MemoryClass c) { return plan.classes[static_cast<std::size_t>(c)]; };
    peaks.push_back(of(MemoryClass::weights) + of(MemoryClass::gradients) + of(MemoryClass::optimizer));
    EXPECT_GT(plan.cost.total().network, 0);
  }
  for (std::size_t i = 1; i < peaks.size(); ++i) EXPECT_LT(peaks[i], peaks[i - 1]) << "stage " << i;
}

}  // namespace
}  // namespace inlay::testing
