#include "adapter/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/adapters.h"
#include "support/files.h"
#include "support/fixtures.h"

namespace inlay::adapter {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using testing::user_error_of;

AdapterOptions lora() {
  AdapterOptions options;
  options.kind = AdapterKind::lora;
  options.rank = 4;
  options.alpha = 8;
  options.target_linear = true;
  return options;
}

ResolvedAdapter resolved(const AdapterOptions& options, const std::string& model) {
  return resolve(options, model::load_config(testing::model_fixture(model)), "the-base", "run.yaml");
}

TEST(AdapterOptions, AllLinearIsSpeltOut) {
  AdapterOptions options = lora();
  const ResolvedAdapter dense = resolved(options, "llama_linear_sharded");
  EXPECT_THAT(dense.config.target_modules.names,
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"));
  EXPECT_EQ(dense.config.base_model, "the-base");
  EXPECT_EQ(dense.targets.parts.size(), 3 * 7u);
  // What PEFT wrote for the same model and its own all-linear.
  EXPECT_EQ(resolved(options, "mistral_window_fp16").targets.parts.size(),
            find_targets(read_adapter_config(testing::adapter_fixture("mistral")),
                         testing::base_config_of(testing::adapter_fixture("mistral")), {})
                .parts.size());
  options.target_modules.names = {"lm_head", "q_proj"};
  EXPECT_EQ(resolved(options, "llama_linear_sharded").targets.parts.size(), 3 * 7u + 1);
  options = lora();
  options.target_linear = false;
  options.target_modules.pattern = "all-linear";
  EXPECT_EQ(resolved(options, "llama_linear_sharded").config, dense.config);
}

// gate_proj alone would mean the experts' as well.
TEST(AdapterOptions, NamesThatMeanTooMuchAreWhole) {
  const ResolvedAdapter mixed = resolved(lora(), "qwen3_moe_mixed");
  EXPECT_THAT(mixed.config.target_modules.names,
              UnorderedElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "model.layers.1.mlp.gate_proj",
                                   "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"));
  EXPECT_EQ(mixed.targets.parts.size(), 3 * 4 + 3u);
}

TEST(AdapterOptions, ATiedEmbeddingIsSavedAsOne) {
  AdapterOptions options = lora();
  EXPECT_FALSE(resolved(options, "llama_llama3_tied").config.ties_embeddings);
  options.modules_to_save = {"lm_head"};
  EXPECT_TRUE(resolved(options, "llama_llama3_tied").config.ties_embeddings);
  EXPECT_FALSE(resolved(options, "llama_linear_sharded").config.ties_embeddings);
}

TEST(AdapterOptions, AnAdapterGoesOnAsItIs) {
  AdapterOptions options;
  options.kind = AdapterKind::lora;
  options.model_dir = testing::adapter_fixture("llama_patterns").string();
  options.dropout = 0.1;
  const ResolvedAdapter found = resolved(options, "llama_linear_sharded");
  AdapterConfig expected = read_adapter_config(options.model_dir);
  expected.base_model = "the-base";
  expected.dropout = 0.1;
  EXPECT_EQ(found.config, expected);
  EXPECT_EQ(found.targets.parts.size(), 7u);
}

TEST(AdapterOptions, KeysMayNotContradictTheAdapterToGoOnFrom) {
  AdapterOptions options = lora();
  options.model_dir = testing::adapter_fixture("llama").string();
  EXPECT_NO_THROW(resolved(options, "llama_linear_sharded"));
  options.rank = 5;
  options.dora = true;
  EXPECT_THAT(user_error_of([&] { resolved(options, "llama_linear_sharded"); }),
              AllOf(HasSubstr("run.yaml: lora_r: 5, but the adapter in lora_model_dir has 4"),
                    HasSubstr("peft_use_dora: true, but the adapter in lora_model_dir has false")));
  options = lora();
  options.model_dir = testing::adapter_fixture("llama").string();
  options.target_linear = false;
  options.target_modules.names = {"q_proj"};
  EXPECT_THAT(user_error_of([&] { resolved(options, "llama_linear_sharded"); }),
              HasSubstr("run.yaml: lora_target_modules: these targets are not those of the adapter in lora_model_dir; "
                        "leave it out"));
  options = lora();
  options.model_dir = "/nowhere";
  EXPECT_THAT(user_error_of([&] { resolved(options, "llama_linear_sharded"); }), HasSubstr("/nowhere: not an adapter"));
}

// What narrows the targets must leave all that the adapter has, also where no targets are named beside it.
TEST(AdapterOptions, KeysThatNarrowDoNotGoUnheard) {
  AdapterOptions on;
  on.kind = AdapterKind::lora;
  on.model_dir = testing::adapter_fixture("llama").string();
  const auto said = [](const AdapterOptions& options) {
    return user_error_of([&] { resolved(options, "llama_linear_sharded"); });
  };
  AdapterOptions options = on;
  options.exclude_modules.names = {"q_proj"};
  EXPECT_THAT(said(options), HasSubstr("run.yaml: lora_exclude_modules: these targets are not"));
  options = on;
  options.layers = {0};
  EXPECT_THAT(said(options), HasSubstr("run.yaml: peft_layers_to_transform: these targets are not"));
  options.exclude_modules.names = {"q_proj"};
  EXPECT_THAT(said(options), HasSubstr("run.yaml: lora_exclude_modules, peft_layers_to_transform: these targets"));
  options = on;
  options.layers = {0, 1, 2};  // all that the model has
  EXPECT_NO_THROW(resolved(options, "llama_linear_sharded"));
  options = on;
  options.model_dir = testing::adapter_fixture("qwen3_embeddings").string();
  options.layers = {0};
  EXPECT_THAT(user_error_of([&] { resolved(options, "qwen3_mixed_window"); }), HasSubstr("peft_layers_to_transform"));
}

}  // namespace
}  // namespace inlay::adapter
