#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "backend/lanes.h"
#include "support/any_start.h"
#include "support/deep_model.h"
#include "support/device_tensors.h"
#include "support/fp8_model.h"
#include "support/largest_batch.h"
#include "support/training_state.h"
#include "weights/input_subspace.h"
#include "weights/lora.h"

// Where nothing is clipped, layers are stepped while the way back goes on below them: to the bit what a step does that
// waits for the norm, and then need not clip.
namespace inlay::testing {
namespace {

constexpr double never_reached = 1e30;

struct BesideOutcome {
  std::vector<double> numbers;  // losses and norms
  std::map<std::string, Bytes> state;
};

class TrainBeside : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  train::EngineOptions options() const {
    train::EngineOptions result = {.device = std::get<0>(GetParam()), .compute = std::get<1>(GetParam())};
    result.optimizer.weight_decay = 0.1;
    result.optimizer.least_beside = 1;
    return result;
  }

  // Holds up a lane of a GPU: who does not wait for what is in it finds something else.
  static void hold(backend::Exec& exec) {
    if (!exec.on_cuda()) return;
    backend::call_in_lane(exec, backend::Lane::compute,
                          [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  }

  template <class Model>
  static BesideOutcome train(const Model& model, const train::EngineOptions& options) {
    const auto engine = model.engine(options);
    if (options.weights != nullptr) {
      const AnyStart start;
      engine->start(&start);
    }
    backend::Exec* beside = engine->optimizer().beside();
    BesideOutcome result;
    for (std::int64_t step = 1; step <= 4; ++step) {
      if (step == 2) hold(engine->exec());
      if (step == 3 && beside != nullptr) hold(*beside);
      // One pass, and two of which the last alone may step.
      const std::vector<PackedBatch> one = {model.batches[0]};
      const train::StepResult found = engine->train_step(step % 2 == 0 ? model.batches : one, step, 1e-2);
      const double evaluated = engine->evaluate(model.batches.back()).loss;
      result.numbers.insert(result.numbers.end(), {found.loss, found.grad_norm, found.raw_grad_norm, evaluated});
    }
    result.state = training_state(*engine);
    return result;
  }

  template <class Model>
  void expect_the_same(const Model& model, train::EngineOptions options, bool beside = true) const {
    options.optimizer.max_grad_norm = 0;
    EXPECT_EQ(model.engine(options)->optimizer().beside() != nullptr, beside);
    const BesideOutcome with = train(model, options);
    options.optimizer.max_grad_norm = never_reached;
    EXPECT_EQ(model.engine(options)->optimizer().beside(), nullptr);
    const BesideOutcome without = train(model, options);
    EXPECT_EQ(with.numbers, without.numbers);
    for (const auto& [name, bytes] : without.state) EXPECT_TRUE(with.state.at(name) == bytes) << name;
    for (const double number : with.numbers) EXPECT_TRUE(std::isfinite(number));
  }
};

TEST_P(TrainBeside, StepsAreTheSameBits) {
  const DeepModel model;
  for (const char* policy : {"keep", "recompute", "offload_half"}) {
    // Layer by layer, some at a time, and all at the end.
    for (const std::int64_t least : {std::int64_t{1}, std::int64_t{20000}, std::int64_t{1} << 24}) {
      SCOPED_TRACE(fmt::format("{}, {} numbers at once", policy, least));
      train::EngineOptions o = options();
      o.policy = model::ActivationPolicy::parse(policy);
      o.optimizer.least_beside = least;
      expect_the_same(model, o);
    }
  }
}

TEST_P(TrainBeside, ModelsOfOtherKinds) {
  for (const char* name : {"llama_llama3_tied", "mixtral_balance", "gemma2_softcaps", "qwen2_yarn_bf16",
                           "gpt_oss_balance", "olmo2_norms_behind", "glm4_four_norms"}) {
    SCOPED_TRACE(name);
    expect_the_same(DeepModel(4, name), options());
  }
}

// The codes of a step's weights are made anew from what was stepped.
TEST_P(TrainBeside, WeightsWithCodesInFp8) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied ? "tied" : "untied");
    Fp8Llama model(144, 272, 3, 112, tied);
    model.batches.push_back(model.batches.front());
    train::EngineOptions o = options();
    o.fp8 = with(ops::Fp8Recipe::block);
    o.fp8->head = true;
    expect_the_same(model, o);
  }
}

TEST_P(TrainBeside, OtherOptimizers) {
  const DeepModel model;
  for (const DType moments : {DType::bf16, DType::u8}) {
    SCOPED_TRACE(name_of(moments));
    train::EngineOptions o = options();
    o.optimizer.moments = moments;
    expect_the_same(model, o);
  }
  train::EngineOptions o = options();
  o.optimizer.kind = train::OptimizerKind::muon;  // embedding, head and vectors alone
  expect_the_same(model, o);
  o.optimizer.kind = train::OptimizerKind::schedule_free;
  expect_the_same(model, o, false);
}

// What trains in the place of a matrix, or is projected, waits for the step; what is frozen is in no step.
TEST_P(TrainBeside, OtherKindsOfWeights) {
  const DeepModel model;
  auto plan = std::make_shared<weights::WeightPlan>();
  model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
    if (p.layer == 1) plan->frozen.insert(p.name);
    if (p.layer < 0 || !p.is_matrix()) return;
    if (p.layer == 2 || p.layer == 5) {
      const std::int64_t free = p.shape[1] / 3;
      plan->kinds[p.name] = std::make_shared<weights::InputKind>(
          weights::InputLayout{.free = free, .frozen = p.shape[1] - free}, weights::BasisPlace::device);
    }
    if (p.layer == 3 || p.layer == 6) {
      plan->frozen.insert(p.name);
      weights::LoraLayout layout;
      layout.parts = {{.row = 0, .rows = p.shape[0], .rank = 4, .scale = 2}};
      plan->kinds[p.name] = std::make_shared<weights::LoraKind>(layout, std::make_shared<weights::DenseKind>());
    }
  });
  train::EngineOptions o = options();
  o.weights = plan;
  expect_the_same(model, o);
}

TEST_P(TrainBeside, ClippingWaitsForTheNorm) {
  const DeepModel model;
  train::EngineOptions o = options();
  const BesideOutcome free = train(model, o);
  o.optimizer.max_grad_norm = 1e-3;
  EXPECT_EQ(model.engine(o)->optimizer().beside(), nullptr);
  const BesideOutcome clipped = train(model, o);
  EXPECT_EQ(free.numbers[1], clipped.numbers[1]) << "norms are those before clipping";
  EXPECT_NE(free.state, clipped.state);
}

TEST_P(TrainBeside, GradientsAloneStepNothing) {
  const DeepModel model;
  const auto engine = model.engine(options());
  engine->train_step(model.batches, 1, 1e-2);
  const auto before = training_state(*engine);
  engine->gradients(model.batches, 2);
  EXPECT_TRUE(training_state(*engine) == before);
}

TEST_P(TrainBeside, LayersOnTheHostAreSteppedThere) {
  const DeepModel model;
  train::EngineOptions o = options();
  o.host_layers = 2;
  EXPECT_EQ(model.engine(o)->optimizer().beside(), nullptr);
}

TEST_P(TrainBeside, ThePlanIsTheRun) {
  const DeepModel model;
  train::EngineOptions o = options();
  o.max_tokens = model.batches[0].token_count();
  o.max_document = 30;
  const train::MemoryPlan plan = train::Engine::plan(model.config, o);
  const auto engine = model.engine(o);
  for (int step = 1; step <= 2; ++step) engine->train_step({largest_batch(o)}, step, 1e-2);
  engine->evaluate(largest_batch(o));
  EXPECT_EQ(engine->exec().arena().peak(), plan.device_peak);
  EXPECT_EQ(engine->exec().host().arena().peak(), plan.host_peak);
  // The work is the same, wherever it is done.
  o.optimizer.max_grad_norm = never_reached;
  const backend::Work beside = plan.cost.of(backend::StepPart::optimizer);
  const backend::Work after = train::Engine::plan(model.config, o).cost.of(backend::StepPart::optimizer);
  EXPECT_GT(beside.bytes, 0);
  EXPECT_EQ(beside.bytes, after.bytes);
  EXPECT_EQ(beside.host_bytes, after.host_bytes);
}

INSTANTIATE_TEST_SUITE_P(, TrainBeside,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
