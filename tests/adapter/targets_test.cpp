#include "adapter/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/adapters.h"
#include "support/files.h"
#include "support/fixtures.h"

namespace inlay::adapter {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::user_error_of;

model::ModelConfig config_of(const std::string& name) { return model::load_config(testing::model_fixture(name)); }

const NameSource of_options{.file = "run.yaml", .options = true};
const NameSource of_file{.file = "adapter_config.json"};

AdapterConfig targeting(std::vector<std::string> names) {
  AdapterConfig config;
  config.rank = 2;
  config.target_modules.names = std::move(names);
  return config;
}

AdapterConfig all_linear() {
  AdapterConfig config;
  config.rank = 2;
  config.target_modules.pattern = "all-linear";
  return config;
}

std::vector<std::string> modules_of(const AdapterTargets& targets) {
  std::vector<std::string> modules;
  for (const AdaptedPart& part : targets.parts) {
    if (modules.empty() || modules.back() != part.module) modules.push_back(part.module);
  }
  return modules;
}

std::string error_of(const AdapterConfig& config, const std::string& model, const NameSource& source = of_options) {
  return user_error_of([&] { find_targets(config, config_of(model), source); });
}

TEST(AdapterTargets, AllLinearIsEveryLinearButTheHead) {
  const AdapterTargets targets = find_targets(all_linear(), config_of("llama_llama3_tied"), of_options);
  std::vector<std::string> expected;
  for (const char* layer : {"0", "1"}) {
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      expected.push_back(fmt::format("model.layers.{}.{}", layer, name));
    }
  }
  EXPECT_EQ(modules_of(targets), expected);
  EXPECT_EQ(modules_of(find_targets(all_linear(), config_of("qwen3_mixed_window"), of_options)), expected);
}

// transformers has experts and routers as tensors; target_parameters names them.
TEST(AdapterTargets, AllLinearOfAMixtureIsWhatIsLinear) {
  const AdapterTargets targets = find_targets(all_linear(), config_of("qwen3_moe_mixed"), of_options);
  std::set<std::string> mlps;
  for (const std::string& module : modules_of(targets)) {
    if (module.find("self_attn") == std::string::npos) mlps.insert(module);
  }
  EXPECT_THAT(
      mlps, ElementsAre("model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_EQ(targets.parts.size(), 3 * 4 + 3u);
}

TEST(AdapterTargets, APartKnowsItsRows) {
  const model::ModelConfig model = config_of("llama_linear_sharded");
  const AdapterTargets targets = find_targets(targeting({"k_proj", "up_proj"}), model, of_options);
  ASSERT_EQ(targets.parts.size(), 6u);
  const AdaptedPart& k = targets.parts[0];
  EXPECT_EQ(k.parameter, "layers.0.attention.qkv");
  EXPECT_EQ(k.part, 1);
  EXPECT_EQ(k.row, model.q_width());
  EXPECT_EQ(k.out, model.kv_width());
  EXPECT_EQ(k.in, model.hidden);
  const AdaptedPart& up = targets.parts[1];
  EXPECT_EQ(up.parameter, "layers.0.mlp.gate_up");
  EXPECT_EQ(up.row, model.intermediate);
}

TEST(AdapterTargets, RanksAlphasAndScalesGoByPattern) {
  const std::filesystem::path folder = testing::adapter_fixture("llama_patterns");
  const AdapterTargets targets = find_targets(read_adapter_config(folder), testing::base_config_of(folder), of_file);
  std::map<std::string, std::pair<std::int64_t, double>> found;
  for (const AdaptedPart& part : targets.parts) found[part.module] = {part.rank, part.scale};
  const std::map<std::string, std::pair<std::int64_t, double>> expected = {
      {"model.layers.0.self_attn.q_proj", {6, 5.0 / 6}}, {"model.layers.0.self_attn.k_proj", {2, 7.0 / 2}},
      {"model.layers.0.self_attn.v_proj", {2, 5.0 / 2}}, {"model.layers.0.self_attn.o_proj", {2, 5.0 / 2}},
      {"model.layers.2.self_attn.q_proj", {6, 5.0 / 6}}, {"model.layers.2.self_attn.k_proj", {2, 5.0 / 2}},
      {"model.layers.2.self_attn.o_proj", {3, 5.0 / 3}}};
  EXPECT_EQ(found, expected);

  AdapterConfig rslora = targeting({"q_proj"});
  rslora.rslora = true;
  rslora.alpha = 6;
  rslora.rank = 4;
  EXPECT_EQ(find_targets(rslora, config_of("qwen3_mixed_window"), of_options).parts[0].scale, 3.0);
}

TEST(AdapterTargets, ANameEndsAModulesNameAtADot) {
  EXPECT_EQ(
      find_targets(targeting({"layers.1.mlp.up_proj"}), config_of("llama_linear_sharded"), of_options).parts.size(),
      1u);
  EXPECT_THAT(error_of(targeting({"proj"}), "llama_linear_sharded"),
              "run.yaml: lora_target_modules: this model has no proj (did you mean q_proj?); it has q_proj, k_proj, "
              "v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head");
  AdapterConfig pattern;
  pattern.target_modules.pattern = "q_proj";  // not the whole of any name
  EXPECT_THAT(error_of(pattern, "llama_linear_sharded"),
              HasSubstr("lora_target_modules: this model has nothing that 'q_proj' names"));
  pattern.target_modules.pattern = "(?P<x>.*)\\.[qk]_proj";  // Python's spelling of a named group
  EXPECT_EQ(find_targets(pattern, config_of("llama_linear_sharded"), of_options).parts.size(), 6u);
  pattern.target_modules.pattern = "(";
  EXPECT_THAT(error_of(pattern, "llama_linear_sharded"),
              HasSubstr("run.yaml: lora_target_modules: '(' is not a regular expression"));
}

TEST(AdapterTargets, StackedExpertsHaveOnePairForGateAndUp) {
  AdapterConfig config;
  config.rank = 3;
  config.target_parameters = {"experts.gate_up_proj", "experts.down_proj", "gate.weight"};
  const model::ModelConfig model = config_of("mixtral_balance");
  const AdapterTargets targets = find_targets(config, model, of_options);
  EXPECT_THAT(modules_of(targets), ElementsAre("model.layers.0.mlp.gate", "model.layers.0.mlp.experts.base_layer",
                                               "model.layers.0.mlp.experts", "model.layers.1.mlp.gate",
                                               "model.layers.1.mlp.experts.base_layer", "model.layers.1.mlp.experts"));
  const AdaptedPart& second = targets.parts[2];
  EXPECT_EQ(second.parameter, "layers.0.mlp.experts.1.gate_up");
  EXPECT_EQ(second.part, AdaptedPart::whole);
  EXPECT_EQ(second.expert, 1);
  EXPECT_EQ(second.stacked, 5);
  EXPECT_EQ(second.out, 2 * model.experts.intermediate);
  EXPECT_EQ(second.in, model.hidden);

  config.target_parameters = {"gate_up_proj"};
  EXPECT_THAT(modules_of(find_targets(config, config_of("gpt_oss_balance"), of_options)),
              ElementsAre("model.layers.0.mlp.experts", "model.layers.1.mlp.experts"));
}

TEST(AdapterTargets, UnknownNamesAreListedWithTheNearest) {
  AdapterConfig config = targeting({"q_prj", "v_proj", "w1", "wqkv_pack"});
  config.target_parameters = {"experts.gate_up_prj"};
  config.modules_to_save = {"lm_haed"};
  EXPECT_THAT(
      error_of(config, "qwen3_moe_mixed"),
      AllOf(HasSubstr("lora_target_modules: this model has no q_prj (did you mean q_proj?), w1, wqkv_pack; it has "
                      "q_proj, k_proj"),
            HasSubstr(
                "lora_target_parameters: this model has no experts.gate_up_prj (did you mean experts.gate_up_proj?)"),
            HasSubstr("lora_modules_to_save: this model has no lm_haed (did you mean lm_head?)")));
  // A configuration of PEFT's may name more than a model has.
  EXPECT_EQ(find_targets(targeting({"v_proj", "w1"}), config_of("llama_linear_sharded"), of_file).parts.size(), 3u);
}

TEST(AdapterTargets, TensorsOfExpertsAreNoModules) {
  EXPECT_THAT(
      error_of(targeting({"q_proj", "gate_up_proj"}), "gpt_oss_balance"),
      HasSubstr("gate_up_proj is a tensor of stacked experts, not a module; name it under lora_target_parameters"));
}

TEST(AdapterTargets, SeparateExpertsHaveTheirOwn) {
  const AdapterTargets targets = find_targets(targeting({"w1", "w3"}), config_of("mixtral_balance"), of_options);
  ASSERT_EQ(targets.parts.size(), 2u * 5 * 2);
  EXPECT_EQ(targets.parts[3].module, "model.layers.0.block_sparse_moe.experts.1.w3");
  EXPECT_EQ(targets.parts[3].parameter, "layers.0.mlp.experts.1.gate_up");
  EXPECT_EQ(targets.parts[3].part, 1);
  EXPECT_EQ(targets.parts[3].stacked, 0);

  AdapterConfig both = targeting({"w2"});
  both.target_parameters = {"gate_up_proj"};
  EXPECT_THAT(error_of(both, "mixtral_balance"), HasSubstr("experts already have adapters of their own"));
}

TEST(AdapterTargets, ARankFitsItsMatrix) {
  AdapterConfig config = targeting({"q_proj", "k_proj"});
  config.rank = 21;  // k and v have 20 rows
  EXPECT_THAT(error_of(config, "llama_linear_sharded"),
              AllOf(HasSubstr("lora_r: 21 is more than model.layers.0.self_attn.k_proj can have, which is 20 by 36; "
                              "expected at most 20"),
                    Not(HasSubstr("q_proj"))));
  EXPECT_EQ(find_targets(config, config_of("llama_linear_sharded"), of_file).parts.size(), 6u);  // PEFT has it so
}

TEST(AdapterTargets, EmbeddingsAndTiedHeadsAreNotAdapted) {
  EXPECT_THAT(
      error_of(targeting({"q_proj", "embed_tokens"}), "llama_linear_sharded"),
      HasSubstr(
          "model.embed_tokens: low-rank changes of embeddings are not supported; name it under lora_modules_to_save"));
  EXPECT_THAT(error_of(targeting({"q_proj", "lm_head"}), "llama_llama3_tied", of_file),
              HasSubstr("lm_head: this model's head is its embedding"));
  EXPECT_EQ(find_targets(targeting({"lm_head"}), config_of("llama_linear_sharded"), of_options).parts[0].parameter,
            "head");
}

TEST(AdapterTargets, ModulesToSaveAreWholeParameters) {
  AdapterConfig config = targeting({"q_proj", "o_proj", "lm_head"});
  config.modules_to_save = {"lm_head", "embed_tokens", "norm"};
  const AdapterTargets targets = find_targets(config, config_of("qwen3_mixed_window"), of_options);
  std::vector<std::string> saved;
  for (const SavedPart& part : targets.saved) saved.push_back(part.tensor);
  EXPECT_EQ(saved.front(), "model.embed_tokens.weight");
  EXPECT_EQ(saved.back(), "lm_head.weight");
  EXPECT_THAT(saved, ::testing::Contains("model.layers.1.input_layernorm.weight"));  // a name need not begin at a dot
  for (const std::string& module : modules_of(targets)) EXPECT_NE(module, "lm_head");

  config.modules_to_save = {"k_proj"};
  EXPECT_THAT(error_of(config, "qwen3_mixed_window"),
              HasSubstr("q_proj.weight, model.layers.0.self_attn.k_proj.weight"));
  config.modules_to_save = {"experts"};
  EXPECT_THAT(error_of(targeting({"q_proj"}), "gpt_oss_balance"), "<no error>");
  config = targeting({"q_proj"});
  config.modules_to_save = {"experts"};
  EXPECT_THAT(error_of(config, "gpt_oss_balance"),
              HasSubstr("training experts in full beside adapters is not supported"));
}

TEST(AdapterTargets, ATiedEmbeddingIsSavedOnce) {
  AdapterConfig config = targeting({"q_proj"});
  for (const char* name : {"embed_tokens", "lm_head"}) {
    config.modules_to_save = {name};
    config.ties_embeddings = false;
    EXPECT_THAT(error_of(config, "llama_llama3_tied", of_file), HasSubstr("trained apart, which is not supported"));
    config.ties_embeddings = true;
    const AdapterTargets targets = find_targets(config, config_of("llama_llama3_tied"), of_options);
    ASSERT_EQ(targets.saved.size(), 1u);
    EXPECT_EQ(targets.saved[0].parameter, "embedding");
    EXPECT_TRUE(targets.saved[0].is_tied_head);
  }
}

TEST(AdapterTargets, LayersAreThoseOfTheModel) {
  AdapterConfig config = targeting({"q_proj"});
  config.layers = {1, 3};
  EXPECT_THAT(error_of(config, "llama_linear_sharded"),
              HasSubstr("peft_layers_to_transform: layer 3 of a model that has 3, counted from 0"));
}

TEST(AdapterTargets, WhatPeftCannotLoadIsRefused) {
  AdapterConfig config = targeting({"q_proj"});
  config.target_parameters = {"down_proj"};
  config.dora = true;
  config.dropout = 0.1;
  EXPECT_THAT(error_of(config, "mixtral_balance"), AllOf(HasSubstr("peft_use_dora: works only on modules"),
                                                         HasSubstr("lora_dropout: works only on modules")));
  config = targeting({"q_proj"});
  config.target_parameters = {"q_proj.weight"};
  EXPECT_THAT(error_of(config, "llama_linear_sharded"), HasSubstr("is a target twice"));
}

}  // namespace
}  // namespace inlay::adapter
