#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/grouped_fp8_matmul.h"
#include "support/fp8_model.h"
#include "support/largest_batch.h"
#include "weights/factor_subspace.h"
#include "weights/input_subspace.h"
#include "weights/lora.h"

// Mixtures whose experts multiply in fp8. Where fp8 moves a router's logits, tokens may go elsewhere; so that gradients
// can be compared, all experts are chosen, or the routers are silent and the same ones always are.
namespace inlay::testing {
namespace {

using train::Engine;
using train::EngineOptions;
using weights::Role;

using Gradients = std::map<std::string, std::vector<double>>;

struct Sizes {
  const char* fixture = "gpt_oss_balance";
  std::int64_t hidden = 144, intermediate = 272, experts = 3, chosen = 3;  // sizes that the products pad
};

// A fixture's architecture with other sizes, and no loss that balances experts.
std::string config_of(const Sizes& sizes) {
  nlohmann::json config = nlohmann::json::parse(read_text(model_fixture(sizes.fixture) / "config.json"));
  config["hidden_size"] = sizes.hidden;
  config[config.contains("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size"] = sizes.intermediate;
  config["num_local_experts"] = sizes.experts;
  config["num_experts_per_tok"] = sizes.chosen;
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 2;
  config["head_dim"] = 32;
  config["vocab_size"] = 97;
  config["max_position_embeddings"] = 256;
  config["router_aux_loss_coef"] = 0.0;
  return config.dump();
}

struct Mixture : Fp8Model {
  explicit Mixture(const Sizes& sizes = {}) : Fp8Model(config_of(sizes)) {}
};

// Equal logits, and no bias: the first experts have every token.
void silence_routers(Engine& engine) {
  for (const auto& layer : engine.decoder().parameters().layers) {
    for (const View& value : {layer->moe.router.value, layer->moe.router_bias.value}) {
      if (!value.absent()) engine.exec().fill_zero(value);
    }
  }
}

bool is_zero(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double x) { return x == 0; });
}

class TrainFp8Experts : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  void SetUp() override {
    if (!backend::grouped_fp8_possible(device())) GTEST_SKIP() << "this device makes no products of experts in fp8";
  }
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  EngineOptions options(std::optional<model::Fp8Options> fp8 = model::Fp8Options{}) const {
    return {.device = device(), .compute = dtype(), .fp8 = std::move(fp8), .optimizer_state = false};
  }
  Gradients gradients(const Mixture& mixture, const EngineOptions& options, bool silent = false) const {
    const auto engine = mixture.engine(options);
    if (silent) silence_routers(*engine);
    engine->gradients(mixture.batches);
    Gradients result = gradients_of(*engine);
    result["loss"] = {engine->decoder().read_loss(engine->exec()).loss};
    return result;
  }
  // Those that are zero are so exactly.
  static void expect_close(const Gradients& rounded, const Gradients& exact, double least) {
    EXPECT_NE(rounded, exact);
    EXPECT_NEAR(rounded.at("loss")[0], exact.at("loss")[0], 2e-3 * exact.at("loss")[0]);
    for (const auto& [name, values] : exact) {
      if (name == "loss") continue;
      if (is_zero(values)) {
        EXPECT_TRUE(is_zero(rounded.at(name))) << name;
      } else {
        EXPECT_GE(cosine(rounded.at(name), values), least) << name;
      }
    }
  }
  // Experts alone.
  static model::Fp8Options experts_of(model::Fp8Options fp8) {
    fp8.layers = {"*.experts.*"};
    return fp8;
  }
};

TEST_P(TrainFp8Experts, GradientsPointWhereThoseOfFullProductsDo) {
  for (const Sizes& sizes : {Sizes{}, Sizes{.hidden = 128, .intermediate = 256}, Sizes{.fixture = "mixtral_balance"},
                             Sizes{.fixture = "qwen3_moe_mixed", .hidden = 128, .intermediate = 256}}) {
    const Mixture mixture(sizes);
    const Gradients exact = gradients(mixture, options(std::nullopt));
    for (const auto& fp8 : {with(ops::Fp8Recipe::block), with(ops::Fp8Recipe::row), with(ops::Fp8Recipe::tensor),
                            with(ops::Fp8Recipe::block, DType::e5m2)}) {
      SCOPED_TRACE(fmt::format("{}, {} x {}, {}, {}", sizes.fixture, sizes.hidden, sizes.intermediate,
                               ops::name_of(fp8.settings.recipe), name_of(fp8.settings.gradients)));
      expect_close(gradients(mixture, options(experts_of(fp8))), exact, 0.98);
      if (fp8.settings.recipe == ops::Fp8Recipe::block) continue;
      model::Fp8Options fast = fp8;
      fast.settings.sums = ops::Fp8Sums::fast;
      expect_close(gradients(mixture, options(experts_of(fast))), exact, 0.98);
    }
  }
}

// One of the two products alone: what lies between them is wanted in fp8 on one side only.
TEST_P(TrainFp8Experts, OneOfTheTwoProducts) {
  for (const auto& [sizes, matrices] :
       {std::pair{Sizes{}, std::vector<std::vector<std::string>>{{"*down_proj*"}, {"*gate_up_proj*"}}},
        {Sizes{.fixture = "mixtral_balance"}, {{"*.w2.*"}, {"*.w1.*", "*.w3.*"}}},
        {Sizes{.fixture = "mixtral_balance", .hidden = 128, .intermediate = 256},
         {{"*.w2.*"}, {"*.w1.*", "*.w3.*"}}}}) {
    const Mixture mixture(sizes);
    const Gradients exact = gradients(mixture, options(std::nullopt));
    for (const std::vector<std::string>& layers : matrices) {
      for (const ops::Fp8Recipe recipe : {ops::Fp8Recipe::block, ops::Fp8Recipe::row}) {
        SCOPED_TRACE(fmt::format("{} {}", layers.front(), ops::name_of(recipe)));
        model::Fp8Options fp8 = with(recipe);
        fp8.layers = layers;
        EngineOptions o = options(fp8);
        expect_close(gradients(mixture, o), exact, 0.98);
        o.policy = model::ActivationPolicy::parse("recompute");
        expect_close(gradients(mixture, o), exact, 0.98);
        o.optimizer_state = true;
        o.max_tokens = mixture.batches[0].token_count();
        o.max_document = 70;
        const auto engine = mixture.engine(o);
        engine->train_step({largest_batch(o)}, 1, 1e-3);
        EXPECT_EQ(engine->exec().arena().peak(), Engine::plan(mixture.config, o).device_peak);
      }
    }
  }
}

TEST_P(TrainFp8Experts, ExpertsWithoutTokens) {
  const Mixture mixture({.experts = 5, .chosen = 2});
  const Gradients exact = gradients(mixture, options(std::nullopt), true);
  for (const ops::Fp8Recipe recipe : {ops::Fp8Recipe::block, ops::Fp8Recipe::row, ops::Fp8Recipe::tensor}) {
    SCOPED_TRACE(ops::name_of(recipe));
    const Gradients rounded = gradients(mixture, options(with(recipe)), true);
    expect_close(rounded, exact, 0.98);
    for (const char* matrix : {"down", "gate_up"}) {  // of all experts, one after the other
      const std::vector<double>& all = rounded.at(fmt::format("grad.model.layers.0.mlp.experts.{}_proj", matrix));
      const auto one = static_cast<std::ptrdiff_t>(all.size() / 5);
      for (std::ptrdiff_t e = 0; e < 5; ++e) {
        EXPECT_EQ(is_zero({all.begin() + e * one, all.begin() + (e + 1) * one}), e >= 2) << matrix << e;
      }
    }
  }
}

TEST_P(TrainFp8Experts, PoliciesGiveTheSameBits) {
  for (const Sizes& sizes : {Sizes{.experts = 5, .chosen = 2},
                             Sizes{.fixture = "mixtral_balance", .hidden = 128, .intermediate = 256, .chosen = 2}}) {
    const Mixture mixture(sizes);
    for (const auto& [recipe, tile] : {std::pair{ops::Fp8Recipe::block, 0},
                                       {ops::Fp8Recipe::block, 40},
                                       {ops::Fp8Recipe::row, 40},
                                       {ops::Fp8Recipe::tensor, 0}}) {
      SCOPED_TRACE(fmt::format("{}, {}, tiles of {}", sizes.fixture, ops::name_of(recipe), tile));
      EngineOptions keep = options(with(recipe));
      keep.mlp_tile = tile;
      const Gradients kept = gradients(mixture, keep);
      EXPECT_EQ(gradients(mixture, keep), kept);
      for (const char* policy : {"recompute", "recompute_norms", "recompute_mlp", "offload"}) {
        EngineOptions other = keep;
        other.policy = model::ActivationPolicy::parse(policy);
        EXPECT_EQ(gradients(mixture, other), kept) << policy;
      }
      EngineOptions host = keep;
      host.host_layers = 1;  // these matrices are copied whenever they are used
      EXPECT_EQ(gradients(mixture, host), kept);
    }
  }
}

TEST_P(TrainFp8Experts, TilesComeToTheSame) {
  const Mixture mixture;
  const Gradients whole = gradients(mixture, options());
  EngineOptions tiled = options();
  tiled.mlp_tile = 40;
  for (const auto& [name, values] : gradients(mixture, tiled)) {
    EXPECT_GE(cosine(values, whole.at(name)), 0.99) << name;
  }
}

TEST_P(TrainFp8Experts, TakesWhatThePlanSays) {
  for (const Sizes& sizes :
       {Sizes{.experts = 5, .chosen = 2}, Sizes{.fixture = "mixtral_balance", .hidden = 128, .intermediate = 256}}) {
    const Mixture mixture(sizes);
    for (const auto& [recipe, policy, host_layers] :
         {std::tuple{ops::Fp8Recipe::block, "keep", 0}, std::tuple{ops::Fp8Recipe::tensor, "recompute", 0},
          std::tuple{ops::Fp8Recipe::block, "recompute", 1}}) {
      SCOPED_TRACE(fmt::format("{}, {}, {}, {}", sizes.fixture, ops::name_of(recipe), policy, host_layers));
      const model::Fp8Options fp8 = with(recipe);
      EngineOptions with_state = options(fp8);
      with_state.optimizer_state = true;
      with_state.policy = model::ActivationPolicy::parse(policy);
      with_state.host_layers = host_layers;
      with_state.max_tokens = mixture.batches[0].token_count();
      with_state.max_document = 70;
      const train::MemoryPlan plan = Engine::plan(mixture.config, with_state);
      const auto engine = mixture.engine(with_state);
      engine->train_step({largest_batch(with_state)}, 1, 1e-3);
      engine->train_step({largest_batch(with_state)}, 2, 1e-3);
      EXPECT_EQ(engine->exec().arena().peak(), plan.device_peak);
      // Every token counts for the experts that it goes to.
      double flops = 0;
      model::ModelParameters(mixture.config).for_each([&](const weights::Parameter& p) {
        if (!fp8.takes(p, mixture.config)) return;
        const double rows =
            static_cast<double>(with_state.max_tokens) *
            (p.expert >= 0 ? static_cast<double>(sizes.chosen) / static_cast<double>(sizes.experts) : 1);
        flops += 6 * static_cast<double>(p.size()) * rows;
      });
      EXPECT_NEAR(plan.cost.model().products[static_cast<std::size_t>(DType::e4m3)], flops, 1e-6 * flops);
    }
  }
}

// Copies are made again after every step: with old ones the loss would stay where it is.
TEST_P(TrainFp8Experts, StepsLowerTheLoss) {
  const Mixture mixture;
  const auto run = [&](std::optional<model::Fp8Options> fp8, std::int64_t host_layers) {
    EngineOptions training = options(std::move(fp8));
    training.optimizer_state = true;
    training.host_layers = host_layers;
    const auto engine = mixture.engine(training);
    std::vector<double> losses;
    for (std::int64_t step = 1; step <= 8; ++step) {
      losses.push_back(engine->train_step(mixture.batches, step, 1e-3).loss);
    }
    return losses;
  };
  const auto plain = run(std::nullopt, 0), eight = run(experts_of({}), 0);
  EXPECT_NE(eight, plain);
  EXPECT_LT(eight.back(), 0.9 * eight.front());
  for (std::size_t step = 0; step < plain.size(); ++step) EXPECT_NEAR(eight[step], plain[step], 0.02 * plain[step]);
  const auto from_host = run(experts_of({}), 1);
  for (std::size_t step = 0; step < plain.size(); ++step) EXPECT_NEAR(from_host[step], eight[step], 1e-3 * eight[step]);
}

TEST_P(TrainFp8Experts, WhichMatrices) {
  for (const char* fixture : {"gpt_oss_balance", "mixtral_balance"}) {
    const Mixture mixture({.fixture = fixture});
    model::ModelParameters(mixture.config).for_each([&](const weights::Parameter& p) {
      EXPECT_EQ(model::Fp8Options{}.takes(p, mixture.config), p.is_matrix() && p.layer >= 0 && p.role != Role::router)
          << p.name;
      EXPECT_EQ(experts_of({}).takes(p, mixture.config), p.expert >= 0) << p.name;
    });
    model::Fp8Options rest;
    rest.layers = {"*.self_attn.*"};
    EXPECT_NE(gradients(mixture, options(rest)), gradients(mixture, options()));
  }
}

// What trains in the place of experts' matrices, or beside them: at once where all are alike, one by one where not.
TEST_P(TrainFp8Experts, OtherKindsOfWeights) {
  using Kind = std::shared_ptr<weights::WeightKind>;
  const Mixture mixture({.experts = 4, .chosen = 4});
  const auto plan_of = [&](const std::function<Kind(const weights::Parameter&)>& kind, bool frozen) {
    auto plan = std::make_shared<weights::WeightPlan>();
    model::ModelParameters(mixture.config).for_each([&](const weights::Parameter& p) {
      if (p.expert < 0) return;
      if (frozen) plan->frozen.insert(p.name);
      if (Kind made = kind(p)) plan->kinds[p.name] = std::move(made);
    });
    return plan;
  };
  const auto subspace = [](const weights::Parameter& p, double free) -> Kind {
    const auto kept = static_cast<std::int64_t>(free * static_cast<double>(p.shape[1]));
    return std::make_shared<weights::InputKind>(weights::InputLayout{.free = kept, .frozen = p.shape[1] - kept},
                                                weights::BasisPlace::device);
  };
  const auto factors = [](const weights::Parameter& p, weights::Route route) -> Kind {
    weights::FactorLayout layout;
    for (const weights::Part& part : p.parts) {
      const std::int64_t all = std::min(part.rows, p.shape[1]);
      layout.parts.push_back({.free = all / 2, .frozen = all - all / 2});
    }
    layout.route = route;
    return std::make_shared<weights::FactorKind>(layout, weights::BasisPlace::device);
  };
  const auto lora = [](const weights::Parameter& p, std::int64_t rank, double dropout) -> Kind {
    weights::LoraLayout layout;
    layout.parts = {{.row = 0, .rows = p.shape[0], .rank = rank, .scale = 2}};
    layout.dropout = dropout;
    return std::make_shared<weights::LoraKind>(layout, std::make_shared<weights::DenseKind>());
  };
  struct Case {
    const char* name;
    std::shared_ptr<const weights::WeightPlan> plan;
    bool one_by_one = false;  // a plan does not know whose rows are whose, and takes room for all of them
  };
  for (const Case& c :
       {Case{"few free directions", plan_of([&](const auto& p) { return subspace(p, 0.3); }, false)},
        Case{"many free directions", plan_of([&](const auto& p) { return subspace(p, 0.7); }, false)},
        Case{"unlike directions", plan_of([&](const auto& p) { return subspace(p, p.expert == 1 ? 0.3 : 0.7); }, false),
             true},
        Case{"some directions",
             plan_of([&](const auto& p) { return p.expert == 0 ? subspace(p, 0.5) : nullptr; }, false), true},
        Case{"factors by a dense gradient",
             plan_of([&](const auto& p) { return factors(p, weights::Route::dense); }, false)},
        Case{"factors, directly", plan_of([&](const auto& p) { return factors(p, weights::Route::direct); }, false)},
        Case{"adapters on down alone",
             plan_of([&](const auto& p) { return p.role == Role::down ? lora(p, 4, 0) : nullptr; }, true)},
        Case{"adapters on gate and up alone",
             plan_of([&](const auto& p) { return p.role == Role::down ? nullptr : lora(p, 4, 0); }, true)},
        Case{"adapters", plan_of([&](const auto& p) { return lora(p, 4, 0); }, true)},
        Case{"adapters with dropout", plan_of([&](const auto& p) { return lora(p, 4, 0.2); }, true)},
        Case{"unlike adapters", plan_of([&](const auto& p) { return lora(p, p.expert == 2 ? 8 : 4, 0); }, true), true},
        Case{"frozen", plan_of([&](const auto&) { return Kind(); }, true)}}) {
    SCOPED_TRACE(c.name);
    const auto trained = [&](std::optional<model::Fp8Options> fp8, const char* policy = "keep") {
      EngineOptions mine = options(std::move(fp8));
      mine.policy = model::ActivationPolicy::parse(policy);
      mine.weights = c.plan;
      mine.max_tokens = mixture.batches[0].token_count();
      mine.max_document = 70;
      const AnyStart start;
      const auto engine = mixture.engine(mine, &start);
      engine->gradients(mixture.batches);
      Gradients result = own_gradients_of(*engine);
      engine->decoder().parameters().for_each([&](weights::Parameter& p) {
        if (!p.trains()) return;
        for (const weights::Part& part : p.parts) {
          const auto values = model::read_gradient(engine->exec(), p, part);
          result[p.name].insert(result[p.name].end(), values.begin(), values.end());
        }
      });
      result["loss"] = {engine->decoder().read_loss(engine->exec()).loss};
      engine->gradients({largest_batch(mine)});
      const std::size_t peak = engine->exec().arena().peak(), planned = Engine::plan(mixture.config, mine).device_peak;
      if (c.one_by_one) {
        EXPECT_LE(peak, planned);
      } else {
        EXPECT_EQ(peak, planned);
      }
      return result;
    };
    const Gradients exact = trained(std::nullopt), rounded = trained(experts_of({}));
    expect_close(rounded, exact, 0.95);
    EXPECT_EQ(trained(experts_of({}), "recompute"), rounded);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainFp8Experts,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
