#include <gtest/gtest.h>

#include "support/fp8_model.h"
#include "support/largest_batch.h"
#include "weights/input_subspace.h"
#include "weights/lora.h"
#include "weights/products.h"

// Models whose layers multiply in fp8.
namespace inlay::testing {
namespace {

using train::Engine;
using train::EngineOptions;

using Gradients = std::map<std::string, std::vector<double>>;

using Model = Fp8Llama;

class TrainFp8 : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  EngineOptions options(std::optional<model::Fp8Options> fp8 = model::Fp8Options{}) const {
    return {.device = device(), .compute = dtype(), .fp8 = std::move(fp8), .optimizer_state = false};
  }
  Gradients gradients(const Model& model, const EngineOptions& options) const {
    const auto engine = model.engine(options);
    engine->gradients(model.batches);
    Gradients result = gradients_of(*engine);
    result["loss"] = {engine->decoder().read_loss(engine->exec()).loss};
    return result;
  }
};

// Every number is rounded to three or four bits on its way; directions stay.
TEST_P(TrainFp8, GradientsPointWhereThoseOfFullProductsDo) {
  for (const auto& [hidden, intermediate] : {std::pair{144, 272}, std::pair{128, 256}}) {
    const Model model(hidden, intermediate);
    const Gradients exact = gradients(model, options(std::nullopt));
    for (const auto& fp8 : {with(ops::Fp8Recipe::block), with(ops::Fp8Recipe::row), with(ops::Fp8Recipe::tensor),
                            with(ops::Fp8Recipe::block, DType::e5m2)}) {
      SCOPED_TRACE(fmt::format("{} x {}, {}, {}", hidden, intermediate, ops::name_of(fp8.settings.recipe),
                               name_of(fp8.settings.gradients)));
      const Gradients rounded = gradients(model, options(fp8));
      EXPECT_NEAR(rounded.at("loss")[0], exact.at("loss")[0], 2e-3 * exact.at("loss")[0]);
      EXPECT_NE(rounded.at("loss"), exact.at("loss"));
      for (const auto& [name, values] : exact) {
        if (name == "loss") continue;
        EXPECT_GE(cosine(rounded.at(name), values), 0.99) << name;
      }
    }
  }
}

// The head alone, of an extent that the products pad and with rows of tokens that carry no label; its own matrix, and
// the embedding's.
TEST_P(TrainFp8, TheHeadWhereItIsAskedFor) {
  for (const bool tied : {false, true}) {
    const Model model(144, 272, 3, 112, tied);
    const Gradients exact = gradients(model, options(std::nullopt));
    for (const auto& recipe : {ops::Fp8Recipe::block, ops::Fp8Recipe::row, ops::Fp8Recipe::tensor}) {
      SCOPED_TRACE(fmt::format("{}, {}", tied ? "tied" : "its own", ops::name_of(recipe)));
      model::Fp8Options fp8 = with(recipe);
      fp8.skip_first = 3;
      EXPECT_EQ(gradients(model, options(fp8)), exact);
      fp8.head = true;
      const Gradients rounded = gradients(model, options(fp8));
      EXPECT_NE(rounded.at("loss"), exact.at("loss"));
      EXPECT_NEAR(rounded.at("loss")[0], exact.at("loss")[0], 2e-3 * exact.at("loss")[0]);
      EngineOptions chunked = options(fp8);
      chunked.loss.chunk = 32;
      const Gradients in_chunks = gradients(model, chunked);
      for (const auto& [name, values] : exact) {
        if (name == "loss") continue;
        EXPECT_GE(cosine(rounded.at(name), values), 0.99) << name;
        EXPECT_GE(cosine(in_chunks.at(name), rounded.at(name)), 0.99) << name;
      }
    }
    model::Fp8Options fp8;
    fp8.head = true;
    model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
      const bool head = p.name == (tied ? "embedding" : "head");
      EXPECT_EQ(fp8.takes(p, model.config), p.is_matrix() && (p.layer >= 0 || head)) << p.name;
    });
  }
}

TEST_P(TrainFp8, LayersThatAreSkippedMultiplyAsBefore) {
  const Model model;
  model::Fp8Options none;
  none.skip_first = 2, none.skip_last = 1;
  EXPECT_EQ(gradients(model, options(none)), gradients(model, options(std::nullopt)));
  model::Fp8Options last;
  last.skip_first = 2;
  EXPECT_NE(gradients(model, options(last)), gradients(model, options(std::nullopt)));
  const model::ModelConfig& config = model.config;
  model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
    const bool matrix_of_a_layer = p.layer >= 0 && p.is_matrix();
    EXPECT_EQ(model::Fp8Options{}.takes(p, config), matrix_of_a_layer) << p.name;
    EXPECT_EQ(last.takes(p, model.config), matrix_of_a_layer && p.layer == 2) << p.name;
  });
}

TEST_P(TrainFp8, LayersThatAreNamedAreTheOnlyOnes) {
  const Model model;
  const auto named = [](std::vector<std::string> layers) {
    model::Fp8Options fp8;
    fp8.layers = std::move(layers);
    return fp8;
  };
  model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
    const bool matrix = p.layer >= 0 && p.is_matrix();
    const bool mlp = p.role == weights::Role::gate_up || p.role == weights::Role::down;
    EXPECT_EQ(named({"2"}).takes(p, model.config), matrix && p.layer == 2) << p.name;
    EXPECT_EQ(named({"0", "*.1.mlp.*"}).takes(p, model.config), matrix && (p.layer == 0 || (p.layer == 1 && mlp)))
        << p.name;
    EXPECT_FALSE(named({"12", "lm_head*"}).takes(p, model.config)) << p.name;
    model::Fp8Options both = named({"0", "1"});
    both.skip_first = 1;
    EXPECT_EQ(both.takes(p, model.config), matrix && p.layer == 1) << p.name;
  });
  model::Fp8Options last;
  last.skip_first = 2;
  EXPECT_EQ(gradients(model, options(named({"2"}))), gradients(model, options(last)));
  EXPECT_EQ(gradients(model, options(named({"7"}))), gradients(model, options(std::nullopt)));
}

TEST_P(TrainFp8, PoliciesGiveTheSameBits) {
  for (const auto& [hidden, intermediate] : {std::pair{144, 272}, std::pair{128, 256}}) {
    const Model model(hidden, intermediate);
    for (const auto& [recipe, tile] : {std::pair{ops::Fp8Recipe::block, 0},
                                       {ops::Fp8Recipe::block, 40},
                                       {ops::Fp8Recipe::row, 40},
                                       {ops::Fp8Recipe::tensor, 0},
                                       {ops::Fp8Recipe::tensor, 40}}) {
      SCOPED_TRACE(fmt::format("{}, tiles of {}", ops::name_of(recipe), tile));
      EngineOptions keep = options(with(recipe));
      keep.mlp_tile = tile;
      const Gradients kept = gradients(model, keep);
      EXPECT_EQ(gradients(model, keep), kept);
      for (const char* policy :
           {"recompute", "recompute_norms", "recompute_mlp", "attention", "offload", "offload_attention", "offload_mlp",
            "offload_both_half", "attention_norm,mlp_norm", "qkv,attention_norm,mlp_norm"}) {
        EngineOptions other = keep;
        other.policy = model::ActivationPolicy::parse(policy);
        EXPECT_EQ(gradients(model, other), kept) << policy;
      }
      EngineOptions host = keep;
      host.host_layers = 2;  // these matrices are copied whenever they are used
      EXPECT_EQ(gradients(model, host), kept);
    }
  }
}

// Of a norm's output that is kept the weight's gradient reads codes alone, and where nothing trains it reads nothing.
TEST_P(TrainFp8, NormsAreKeptAsCodes) {
  constexpr std::int64_t layers = 8, tokens = 520, hidden = 144;
  const auto in_arena = [](std::int64_t bytes) { return (static_cast<std::size_t>(bytes) + 255) / 256 * 256; };
  const Model model(hidden, 272, layers);
  const auto kept_norms = [&](EngineOptions keep) {
    keep.max_tokens = tokens;
    keep.max_document = 70;
    EngineOptions again = keep;
    again.policy = model::ActivationPolicy::parse("recompute_norms");
    const auto activations = [&](const EngineOptions& o) {
      return Engine::plan(model.config, o).classes[static_cast<std::size_t>(MemoryClass::activations)];
    };
    return activations(keep) - activations(again);
  };
  EXPECT_EQ(kept_norms(options(std::nullopt)), 2 * layers * tokens * hidden * size_of(dtype()));
  for (const std::int64_t tile : {0, 200}) {
    EngineOptions eight = options();
    eight.mlp_tile = tile;
    std::size_t codes = 0;
    for (std::int64_t begin = 0; begin<tokens; begin += tile> 0 ? tile : tokens) {
      const std::int64_t rows = tile > 0 ? std::min(tile, tokens - begin) : tokens;
      codes += in_arena(backend::fp8_codes_shape(hidden, rows).size());
      codes += in_arena(4 * backend::fp8_scales_shape(backend::Fp8Scaling::square, hidden, rows).size());
    }
    const std::size_t of_attention =
        in_arena(backend::fp8_codes_shape(hidden, tokens).size()) +
        in_arena(4 * backend::fp8_scales_shape(backend::Fp8Scaling::square, hidden, tokens).size());
    EXPECT_EQ(kept_norms(eight), layers * (of_attention + codes)) << tile;
  }
  auto frozen = std::make_shared<weights::WeightPlan>();
  model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
    if (p.layer >= 0 && p.is_matrix()) frozen->frozen.insert(p.name);
  });
  for (const std::optional<model::Fp8Options>& fp8 : {std::optional<model::Fp8Options>(), {model::Fp8Options{}}}) {
    EngineOptions nothing = options(fp8);
    nothing.weights = frozen;
    EXPECT_EQ(kept_norms(nothing), 0);
    // The norms' own weights train, and the embedding below them all.
    const auto trained = [&](const char* policy) {
      EngineOptions mine = nothing;
      mine.policy = model::ActivationPolicy::parse(policy);
      const auto engine = model.engine(mine);
      engine->gradients(model.batches);
      std::map<std::string, std::vector<float>> result;
      engine->decoder().parameters().for_each([&](weights::Parameter& p) {
        if (!p.trains()) return;
        for (const weights::Part& part : p.parts) result[p.name] = model::read_gradient(engine->exec(), p, part);
      });
      return result;
    };
    const auto kept = trained("keep");
    EXPECT_EQ(kept.size(), 2 * layers + 3);
    EXPECT_EQ(trained("recompute"), kept);
  }
}

TEST_P(TrainFp8, TilesComeToTheSame) {
  const Model model;
  const Gradients whole = gradients(model, options());
  EngineOptions tiled = options();
  tiled.mlp_tile = 40;
  for (const auto& [name, values] : gradients(model, tiled)) {
    EXPECT_GE(cosine(values, whole.at(name)), 0.995) << name;
  }
}

TEST_P(TrainFp8, TakesWhatThePlanSays) {
  const Model model(144, 272, 3, 112);
  for (const auto& [recipe, head] : {std::pair{ops::Fp8Recipe::block, false},
                                     {ops::Fp8Recipe::tensor, false},
                                     {ops::Fp8Recipe::block, true},
                                     {ops::Fp8Recipe::tensor, true}}) {
    SCOPED_TRACE(fmt::format("{}{}", ops::name_of(recipe), head ? ", the head" : ""));
    model::Fp8Options fp8 = with(recipe);
    fp8.head = head;
    EngineOptions with_state = options(fp8);
    with_state.optimizer_state = true;
    with_state.max_tokens = model.batches[0].token_count();
    with_state.max_document = 70;
    const train::MemoryPlan plan = Engine::plan(model.config, with_state);
    const auto engine = model.engine(with_state);
    engine->train_step(model.batches, 1, 1e-3);
    engine->train_step(model.batches, 2, 1e-3);
    EXPECT_EQ(engine->exec().arena().peak(), plan.device_peak);
    // These products, six FLOPs for each of their weights and tokens, are counted in fp8. The first tokens of the three
    // documents that a plan has so many tokens in are no labels.
    double flops = 0;
    model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
      const std::int64_t rows = p.layer >= 0 ? with_state.max_tokens : with_state.max_tokens - 3;
      if (fp8.takes(p, model.config)) flops += 6 * static_cast<double>(p.size() * rows);
    });
    EXPECT_DOUBLE_EQ(plan.cost.model().products[static_cast<std::size_t>(DType::e4m3)], flops);
  }
}

// Copies are made again after every step: with old ones the loss would stay where it is.
TEST_P(TrainFp8, StepsLowerTheLoss) {
  const Model model;
  const auto run = [&](std::optional<model::Fp8Options> fp8, std::int64_t host_layers) {
    EngineOptions training = options(std::move(fp8));
    training.optimizer_state = true;
    training.host_layers = host_layers;
    const auto engine = model.engine(training);
    std::vector<double> losses;
    for (std::int64_t step = 1; step <= 8; ++step) {
      losses.push_back(engine->train_step(model.batches, step, 1e-3).loss);
    }
    return losses;
  };
  const auto plain = run(std::nullopt, 0), eight = run(model::Fp8Options{}, 0);
  EXPECT_LT(eight.back(), 0.9 * eight.front());
  for (std::size_t step = 0; step < plain.size(); ++step) EXPECT_NEAR(eight[step], plain[step], 0.02 * plain[step]);
  const auto from_host = run(model::Fp8Options{}, 2);
  for (std::size_t step = 0; step < plain.size(); ++step) EXPECT_NEAR(from_host[step], eight[step], 1e-3 * eight[step]);
}

// What trains in the place of a matrix: its gradients, and that the matrix itself is what is copied.
TEST_P(TrainFp8, OtherKindsOfWeights) {
  const Model model;
  const auto plan_of = [&](const std::function<std::shared_ptr<weights::WeightKind>(const weights::Parameter&)>& kind,
                           bool frozen) {
    auto plan = std::make_shared<weights::WeightPlan>();
    model::ModelParameters(model.config).for_each([&](const weights::Parameter& p) {
      if (p.layer < 0 || !p.is_matrix()) return;
      plan->kinds[p.name] = kind(p);
      if (frozen) plan->frozen.insert(p.name);
    });
    return plan;
  };
  const auto subspace = [&](double free) {
    return plan_of(
        [free](const weights::Parameter& p) {
          const auto kept = static_cast<std::int64_t>(free * static_cast<double>(p.shape[1]));
          return std::make_shared<weights::InputKind>(weights::InputLayout{.free = kept, .frozen = p.shape[1] - kept},
                                                      weights::BasisPlace::device);
        },
        false);
  };
  const auto lora = plan_of(
      [](const weights::Parameter& p) {
        weights::LoraLayout layout;
        layout.parts = {{.row = 0, .rows = p.shape[0], .rank = 4, .scale = 2}};
        return std::make_shared<weights::LoraKind>(layout, std::make_shared<weights::DenseKind>());
      },
      true);
  struct Case {
    const char* name;
    std::shared_ptr<const weights::WeightPlan> plan;
  };
  for (const Case& c : {Case{"few free directions", subspace(0.3)}, Case{"many free directions", subspace(0.7)},
                        Case{"adapters", lora}}) {
    SCOPED_TRACE(c.name);
    const auto own_gradients = [&](std::optional<model::Fp8Options> fp8, const char* policy = "keep") {
      EngineOptions mine = options(std::move(fp8));
      mine.policy = model::ActivationPolicy::parse(policy);
      mine.weights = c.plan;
      mine.max_tokens = model.batches[0].token_count();
      mine.max_document = 70;
      const AnyStart start;
      const auto engine = model.engine(mine, &start);
      engine->gradients(model.batches);
      const Gradients result = own_gradients_of(*engine);
      engine->gradients({largest_batch(mine)});  // every label counts in a plan
      EXPECT_EQ(engine->exec().arena().peak(), Engine::plan(model.config, mine).device_peak);
      return result;
    };
    const Gradients exact = own_gradients(std::nullopt), rounded = own_gradients(model::Fp8Options{});
    ASSERT_FALSE(exact.empty());
    for (const auto& [name, values] : exact) EXPECT_GE(cosine(rounded.at(name), values), 0.95) << name;
    EXPECT_NE(rounded, exact);
    EXPECT_EQ(own_gradients(model::Fp8Options{}, "recompute_norms"), rounded);
  }
}

std::string fp8_case_name(const ::testing::TestParamInfo<std::tuple<Device, DType>>& info) {
  return case_name(std::get<0>(info.param), std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, TrainFp8,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         fp8_case_name);

}  // namespace
}  // namespace inlay::testing
