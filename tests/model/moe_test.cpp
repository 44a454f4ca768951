#include <gtest/gtest.h>

#include <algorithm>

#include "support/deep_model.h"
#include "support/device_tensors.h"

// Mixtures of experts in a model, where the fixtures of transformers do not lead: experts that get no token, all tokens
// to one of them, tiles, micro-batches, layers on the host.
namespace inlay::testing {
namespace {

using Gradients = std::map<std::string, std::vector<double>>;

class ModelMoe : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  train::EngineOptions options() const {
    return {.device = std::get<0>(GetParam()), .compute = std::get<1>(GetParam()), .optimizer_state = false};
  }
  bool half() const { return std::get<1>(GetParam()) == DType::bf16; }

  static Gradients gradients(train::Engine& engine, const std::vector<PackedBatch>& batches) {
    engine.gradients(batches);
    Gradients result = gradients_of(engine);
    result["loss"] = {engine.decoder().read_loss(engine.exec()).loss};
    return result;
  }

  static std::vector<std::byte> read(train::Engine& engine, View view) {
    std::vector<std::byte> bytes(view.bytes());
    engine.exec().download(bytes.data(), view);
    return bytes;
  }

  // Equal logits: the first experts have every token.
  static void silence_routers(train::Engine& engine) {
    for (const auto& layer : engine.decoder().parameters().layers) {
      if (!layer->moe.router.value.absent()) engine.exec().fill_zero(layer->moe.router.value);
    }
  }
};

// A mixture whose tokens all go to one expert is a dense model with that expert as its MLP; the others have a gradient
// of zero, and take no part in anything.
TEST_P(ModelMoe, AllTokensToOneExpertAreADenseModel) {
  const DeepModel model(3, "mixtral_balance");
  model::ModelConfig sparse = model.config, dense = model.config;
  sparse.experts.chosen = 1;
  sparse.experts.balance = 0;
  for (model::LayerConfig& layer : dense.layers) layer.experts = false;
  const auto create = [&](const model::ModelConfig& config) {
    train::EngineOptions o = options();
    o.max_tokens = model.batches[0].token_count();
    o.max_document = 30;
    return train::Engine::create(config, o);
  };
  const auto mixture = create(sparse), plain = create(dense);
  mixture->load(io::Checkpoint(model.folder.path()));
  silence_routers(*mixture);
  std::map<std::string, View> values;
  mixture->decoder().parameters().for_each([&](weights::Parameter& p) { values[p.name] = p.value; });
  const auto sparse_name = [](std::string name) {
    for (const char* matrix : {"mlp.gate_up", "mlp.down"}) {
      if (name.ends_with(matrix)) name.insert(name.find("mlp.") + 4, "experts.0.");
    }
    return name;
  };
  plain->decoder().parameters().for_each([&](weights::Parameter& p) {
    plain->exec().upload(p.value, read(*mixture, values.at(sparse_name(p.name))).data());
  });

  mixture->gradients(model.batches);
  plain->gradients(model.batches);
  const double loss = plain->decoder().read_loss(plain->exec()).loss;
  // The router's share of a token is exactly 1: only the order of sums differs.
  const double tolerance = half() ? 1e-2 : 2e-6;
  EXPECT_LE(std::abs(mixture->decoder().read_loss(mixture->exec()).loss - loss), tolerance * loss);
  std::map<std::string, std::vector<double>> expected;
  const auto whole = [](train::Engine& engine, weights::Parameter& p) {
    std::vector<double> all;
    for (const weights::Part& part : p.parts) {
      const std::vector<float> values = model::read_gradient(engine.exec(), p, part);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  plain->decoder().parameters().for_each(
      [&](weights::Parameter& p) { expected[sparse_name(p.name)] = whole(*plain, p); });
  mixture->decoder().parameters().for_each([&](weights::Parameter& p) {
    const std::vector<double> actual = whole(*mixture, p);
    if (expected.contains(p.name)) {
      EXPECT_LE(relative_error(actual, expected.at(p.name)), tolerance) << p.name;
    } else {
      EXPECT_TRUE(std::all_of(actual.begin(), actual.end(), [](double x) { return x == 0.0; })) << p.name;
    }
  });
}

TEST_P(ModelMoe, TilesAndPoliciesWithExpertsThatGetNoToken) {
  const DeepModel model(2, "mixtral_balance");
  const auto with = [&](const char* policy, std::int64_t tile) {
    train::EngineOptions o = options();
    o.policy = model::ActivationPolicy::parse(policy);
    o.mlp_tile = tile;
    const auto engine = model.engine(o);
    silence_routers(*engine);
    return gradients(*engine, model.batches);
  };
  const Gradients untiled = with("keep", 0);
  EXPECT_EQ(with("recompute", 0), untiled);
  for (const std::int64_t tile : {1, 7, 43}) {
    for (const auto& [key, values] : with("recompute", tile)) {
      EXPECT_LE(relative_error(values, untiled.at(key)), half() ? 2e-2 : 2e-6) << key << " " << tile;
    }
  }
}

// A step weights the loss of a micro-batch, its load-balancing part included, by the labels that it has.
TEST_P(ModelMoe, MicroBatchesCountByTheirLabels) {
  const DeepModel model(2, "mixtral_balance");
  const auto engine = model.engine(options());
  const Gradients together = gradients(*engine, model.batches);
  Gradients expected;
  double labels = 0;
  for (const PackedBatch& batch : model.batches) labels += static_cast<double>(batch.valid_count());
  for (const PackedBatch& batch : model.batches) {
    const double share = static_cast<double>(batch.valid_count()) / labels;
    for (const auto& [key, values] : gradients(*engine, {batch})) {
      std::vector<double>& sum = expected[key];
      sum.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += share * values[i];
    }
  }
  for (const auto& [key, values] : together) {
    EXPECT_LE(relative_error(values, expected.at(key)), half() ? 2e-2 : 2e-6) << key;
  }
}

TEST_P(ModelMoe, LayersOnTheHostGiveTheSameBits) {
  for (const char* fixture : {"mixtral_balance", "qwen3_moe_mixed"}) {
    const DeepModel model(4, fixture);
    const auto with = [&](std::int64_t host_layers) {
      train::EngineOptions o = options();
      o.host_layers = host_layers;
      return gradients(*model.engine(o), model.batches);
    };
    const Gradients resident = with(0);
    for (const std::int64_t layers : {1, 4}) EXPECT_EQ(with(layers), resident) << fixture << layers;
  }
}

// What the run takes does not depend on where the tokens go.
TEST_P(ModelMoe, ThePlanHoldsWhateverTheRouting) {
  const DeepModel model(2, "mixtral_balance");
  for (const bool silent : {false, true}) {
    train::EngineOptions o = options();
    o.optimizer_state = true;
    o.max_tokens = model.batches[0].token_count();
    o.max_document = 30;
    const train::MemoryPlan plan = train::Engine::plan(model.config, o);
    const auto engine = model.engine(o);
    if (silent) silence_routers(*engine);
    engine->train_step(model.batches, 1, 1e-3);
    EXPECT_LE(engine->exec().arena().peak(), plan.device_peak);
    EXPECT_GE(static_cast<double>(engine->exec().arena().peak()), 0.95 * static_cast<double>(plan.device_peak));
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelMoe,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
