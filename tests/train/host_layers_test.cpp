#include <gtest/gtest.h>

#include "support/deep_model.h"
#include "support/device_tensors.h"
#include "support/largest_batch.h"
#include "train/checkpoint.h"

// Layers that live on the host, with their gradients and optimizer state, train as those on the device do.
namespace inlay::testing {
namespace {

class TrainHostLayers : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  train::EngineOptions options(std::int64_t host_layers, double max_grad_norm) const {
    train::EngineOptions options = {.device = std::get<0>(GetParam()),
                                    .compute = std::get<1>(GetParam()),
                                    .policy = model::ActivationPolicy::parse("recompute_mlp"),
                                    .host_layers = host_layers};
    options.optimizer.max_grad_norm = max_grad_norm;
    options.optimizer.weight_decay = 0.1;
    return options;
  }

  // Losses and norms of a few steps, and the loss of an evaluation between them.
  static std::vector<double> train(const DeepModel& model, train::Engine& engine, std::int64_t from, std::int64_t to) {
    std::vector<double> result;
    for (std::int64_t step = from; step <= to; ++step) {
      const train::StepResult step_result = engine.train_step(model.batches, step, 1e-2);
      result.push_back(step_result.loss);
      result.push_back(step_result.grad_norm);
      result.push_back(engine.evaluate(model.batches[1]).loss);
    }
    return result;
  }

  // The CPU's AdamW is the host's: then nothing differs but where it runs. A GPU's rounds in its own way.
  void expect_same(const std::vector<double>& actual, const std::vector<double>& expected) const {
    if (std::get<0>(GetParam()) == Device::cpu) {
      // The norm sums layer by layer on the host; all else is equal to the bit.
      EXPECT_LE(relative_error(actual, expected), 1e-7);
    } else {
      EXPECT_LE(relative_error(actual, expected), std::get<1>(GetParam()) == DType::bf16 ? 5e-3 : 1e-5);
    }
  }
};

TEST_P(TrainHostLayers, GradientsAreTheSameBits) {
  const DeepModel model;
  const auto gradients = [&](std::int64_t host_layers, const char* policy) {
    train::EngineOptions o = options(host_layers, 0);
    o.optimizer_state = false;
    o.policy = model::ActivationPolicy::parse(policy);
    const auto engine = model.engine(o);
    engine->gradients(model.batches);
    return gradients_of(*engine);
  };
  const auto resident = gradients(0, "keep");
  for (const std::int64_t layers : {1, 2, 3, 7}) {
    for (const char* policy : {"keep", "recompute", "offload_half"}) {
      EXPECT_EQ(gradients(layers, policy), resident) << layers << policy;
    }
  }
}

TEST_P(TrainHostLayers, StepsAreThoseOfTheDevice) {
  const DeepModel model;
  for (const double clip : {0.0, 0.5}) {
    const std::vector<double> expected = train(model, *model.engine(options(0, clip)), 1, 4);
    for (const std::int64_t layers : {1, 4, 7}) {
      SCOPED_TRACE(fmt::format("{} layers, clipping at {}", layers, clip));
      expect_same(train(model, *model.engine(options(layers, clip)), 1, 4), expected);
    }
  }
}

TEST_P(TrainHostLayers, LayersOnTheHostMayBeFrozen) {
  const DeepModel model;
  for (const char* frozen : {"layers.6.", "layers.4.", "layers.0."}) {
    const auto frozen_options = [&](std::int64_t layers) {
      train::EngineOptions o = options(layers, 0.5);
      auto plan = std::make_shared<weights::WeightPlan>();
      model::ModelParameters(model.config).for_each([&](weights::Parameter& p) {
        if (p.name.starts_with(frozen)) plan->frozen.insert(p.name);
      });
      o.weights = plan;
      return o;
    };
    const std::vector<double> expected = train(model, *model.engine(frozen_options(0)), 1, 3);
    for (const std::int64_t layers : {1, 4, 7}) {
      SCOPED_TRACE(fmt::format("{}* frozen, {} layers", frozen, layers));
      expect_same(train(model, *model.engine(frozen_options(layers)), 1, 3), expected);
    }
  }
}

TEST_P(TrainHostLayers, ACheckpointGoesOnBitForBitAndAnywhere) {
  const DeepModel model;
  const TempFolder runs;
  const auto engine = model.engine(options(3, 1.0));
  train(model, *engine, 1, 2);
  const auto folder =
      train::save_checkpoint(*parallel::single_process(), *engine, {model.folder.path(), {}}, runs.path(), {.step = 2});
  const std::vector<double> expected = train(model, *engine, 3, 4);
  const auto again = model.engine(options(3, 1.0));
  train::load_checkpoint(*parallel::single_process(), *again, folder);
  EXPECT_EQ(train(model, *again, 3, 4), expected);
  const auto elsewhere = model.engine(options(0, 1.0));
  train::load_checkpoint(*parallel::single_process(), *elsewhere, folder);
  expect_same(train(model, *elsewhere, 3, 4), expected);
}

TEST_P(TrainHostLayers, ThePlanKnowsBothMemories) {
  const DeepModel model;
  const TempFolder runs;
  for (const std::int64_t layers : {0, 2, 7}) {
    for (const char* policy : {"keep", "offload", "offload_half", "offload_attention", "3*offload+recompute",
                               "offload_both_half", "2*recompute+offload_mlp"}) {
      train::EngineOptions o = options(layers, 1.0);
      o.policy = model::ActivationPolicy::parse(policy);
      o.max_tokens = model.batches[0].token_count();
      o.max_document = 30;
      const train::MemoryPlan plan = train::Engine::plan(model.config, o);
      const auto engine = model.engine(o);
      for (int step = 1; step <= 2; ++step) engine->train_step({largest_batch(o)}, step, 1e-2);
      train::save_checkpoint(*parallel::single_process(), *engine, {model.folder.path(), {}}, runs.path(), {.step = 2});
      EXPECT_EQ(engine->exec().arena().peak(), plan.device_peak) << policy << layers;
      EXPECT_EQ(engine->exec().host().arena().peak(), plan.host_peak) << policy << layers;
      EXPECT_EQ(plan.host_peak > 0, layers > 0 || o.policy.offloads());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, TrainHostLayers,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
