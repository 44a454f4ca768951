#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "model/families/family.h"
#include "model/parameters.h"
#include "model/presets.h"
#include "model/rope_table.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using model::ModelConfig;

std::string llama(const std::string& more = "") {
  return R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,"vocab_size":100,"num_attention_heads":4,)"
         R"("num_hidden_layers":3,"max_position_embeddings":512)" +
         more + "}";
}

ModelConfig parse(const std::string& text) { return model::parse_llama(io::Json::parse(text, "config.json")); }

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfigs, DefaultsOfLlama) {
  const ModelConfig c = parse(llama());
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.layer_count(), 3);
  EXPECT_EQ(c.dtype, DType::f32);
}

TEST(ModelConfigs, OldAndNewSpellingsAgree) {
  const ModelConfig old =
      parse(llama(R"(,"torch_dtype":"bfloat16","rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4.0})"));
  const ModelConfig now =
      parse(llama(R"(,"dtype":"bfloat16","rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":5e5})"));
  EXPECT_EQ(old.dtype, DType::bf16);
  EXPECT_EQ(now.dtype, DType::bf16);
  EXPECT_EQ(model::rope_frequencies(old.rope), model::rope_frequencies(now.rope));
}

TEST(ModelConfigs, MistakesNameFileAndKey) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of(llama(R"(,"num_key_value_heads":3)")), HasSubstr("config.json: num_key_value_heads"));
  EXPECT_THAT(error_of(llama(R"(,"hidden_act":"gelu")")), HasSubstr("hidden_act"));
  EXPECT_THAT(error_of(llama(R"(,"head_dim":7)")), HasSubstr("head_dim"));
  EXPECT_THAT(error_of(llama(R"(,"head_dim":512)")), HasSubstr("256"));
  EXPECT_THAT(error_of(llama(R"(,"rope_scaling":{"rope_type":"longrope","factor":2.0})")),
              HasSubstr("rope_scaling.short_factor"));
  EXPECT_THAT(error_of(llama(R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0})")), HasSubstr("low_freq_factor"));
  EXPECT_THAT(error_of(llama(R"(,"dtype":"int4")")), HasSubstr("int4"));
  EXPECT_THAT(error_of(llama(R"(,"attention_dropout":0.1)")), HasSubstr("attention_dropout"));
  EXPECT_THAT(error_of(R"({"model_type":"llama"})"), HasSubstr("hidden_size"));
}

// What transformers reads from the same files.
TEST(ModelConfigs, ScalingsBesideOneAnother) {
  using ::testing::HasSubstr;
  const std::string yarn = R"("rope_scaling":{"rope_type":"yarn","factor":4.0})";
  EXPECT_EQ(parse(llama(R"(,"rope_parameters":{},)" + yarn)).rope.kind, model::RopeKind::yarn);
  EXPECT_THAT(error_of(llama(R"(,"rope_parameters":{"rope_theta":5e5,"rope_type":"default"},)" + yarn)),
              HasSubstr("rope_scaling: is given, and so is rope_parameters"));
  EXPECT_EQ(parse(llama("," + yarn)).rope.original_positions, 512);
  EXPECT_EQ(parse(llama(R"(,"original_max_position_embeddings":64,)" + yarn)).rope.original_positions, 64);
  EXPECT_THAT(error_of(llama(R"(,"rope_parameters":{"full_attention":{"rope_theta":5e5}})")),
              HasSubstr("rope_parameters.full_attention"));
  EXPECT_THAT(error_of(llama(R"(,"partial_rotary_factor":0.5)")), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_of(llama(R"(,"quantization_config":{"quant_method":"gptq"})")), HasSubstr("quantization_config"));
}

TEST(ModelConfigs, WhatAFileLeavesOutIsTheFamilysOwn) {
  const auto config = [](const std::string& type, const std::string& more) {
    std::string text = llama(R"(,"num_key_value_heads":2)" + more);
    return model::parse_config(io::Json::parse(text.replace(text.find("llama"), 5, type), "config.json"));
  };
  const std::string experts = R"(,"num_local_experts":4,"num_experts_per_tok":2)";
  EXPECT_EQ(config("mixtral", experts).rope.theta, 1e6);
  EXPECT_EQ(config("mixtral", experts).norm_eps, 1e-5f);
  EXPECT_EQ(config("mixtral", experts).layers[0].window, 0);
  EXPECT_EQ(config("mistral", "").layers[0].window, 4096);
  EXPECT_EQ(config("mistral", R"(,"sliding_window":null)").layers[0].window, 0);
  const auto mixed = config(
      "mistral", R"(,"sliding_window":5,"layer_types":["sliding_attention","full_attention","sliding_attention"])");
  EXPECT_EQ(mixed.layers[0].window, 5);
  EXPECT_EQ(mixed.layers[1].window, 0);
  EXPECT_EQ(config("qwen2", R"(,"use_sliding_window":true,"max_window_layers":1)").layers[2].window, 4096);
  EXPECT_EQ(config("qwen3", "").head_dim, 128);
  const auto error = [&](const std::string& type, const std::string& more) {
    return user_error_of([&] { config(type, more); });
  };
  EXPECT_THAT(error("llama", R"(,"per_layer_config":{"0":{"hidden_size":32}})"),
              ::testing::HasSubstr("per_layer_config: layers that differ"));
  EXPECT_THAT(error("mistral", R"(,"layer_types":["chunked_attention","full_attention","full_attention"])"),
              ::testing::HasSubstr("layer_types[0]: 'chunked_attention'"));
}

TEST(ModelConfigs, QwenWindowsApplyOnlyWhereTheyAreOn) {
  const std::string base =
      R"({"model_type":"qwen2","hidden_size":64,"intermediate_size":96,"vocab_size":100,"num_attention_heads":4,)"
      R"("num_key_value_heads":4,"num_hidden_layers":4,"sliding_window":32,"max_window_layers":2,)"
      R"("use_sliding_window":)";
  EXPECT_EQ(model::parse_qwen2(io::Json::parse(base + "false}", "c")).layers[3].window, 0);
  const ModelConfig on = model::parse_qwen2(io::Json::parse(base + "true}", "c"));
  EXPECT_EQ(on.layers[1].window, 0);
  EXPECT_EQ(on.layers[2].window, 32);
  EXPECT_TRUE(on.qkv_bias);
  EXPECT_FALSE(on.output_bias);
}

// Gemma 1 is published with hidden_act 'gelu', with which transformers computes, whatever hidden_activation says; the
// later ones have both keys and it takes the other.
TEST(ModelConfigs, GemmaAsPublishedNamesItsGelu) {
  const auto gate = [](const std::string& type, const std::string& more) {
    std::string text = llama(R"(,"num_key_value_heads":4)" + more);
    text.replace(text.find("llama"), 5, type);
    return model::parse_config(io::Json::parse(text, "config.json")).gate;
  };
  using model::MlpGate;
  EXPECT_EQ(gate("gemma", R"(,"hidden_act":"gelu")"), MlpGate::gelu);
  EXPECT_EQ(gate("gemma", R"(,"hidden_act":"gelu","hidden_activation":null)"), MlpGate::gelu);
  EXPECT_EQ(gate("gemma", R"(,"hidden_act":"gelu","hidden_activation":"gelu_pytorch_tanh")"), MlpGate::gelu);
  EXPECT_EQ(gate("gemma", R"(,"hidden_act":"gelu_pytorch_tanh")"), MlpGate::gelu_tanh);
  EXPECT_EQ(gate("gemma", R"(,"hidden_activation":"gelu")"), MlpGate::gelu_tanh);
  EXPECT_EQ(gate("gemma", ""), MlpGate::gelu_tanh);
  for (const char* type : {"gemma2", "gemma3_text"}) {
    EXPECT_EQ(gate(type, R"(,"hidden_act":"gelu")"), MlpGate::gelu_tanh);
    EXPECT_EQ(gate(type, R"(,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu")"), MlpGate::gelu);
  }
}

// A chunk less what its neighbours share of it is what plain attention does as well.
TEST(ModelConfigs, DualChunkAttentionBoundsTheLength) {
  const std::string base =
      R"("hidden_size":64,"intermediate_size":96,"vocab_size":100,"num_attention_heads":4,"head_dim":16,)"
      R"("num_key_value_heads":4,"num_hidden_layers":2,"max_position_embeddings":1010000,"num_experts":4,)"
      R"("num_experts_per_tok":2,"moe_intermediate_size":20,"dual_chunk_attention_config":)";
  for (const char* type : {"qwen2", "qwen3", "qwen3_moe"}) {
    SCOPED_TRACE(type);
    const auto parse = [&](const std::string& dual) {
      const std::string text = fmt::format(R"({{"model_type":"{}",{}{}}})", type, base, dual);
      return model::parse_config(io::Json::parse(text, "config.json"));
    };
    const ModelConfig c = parse(R"({"chunk_size":262144,"local_size":8192,"original_max_position_embeddings":262144})");
    EXPECT_EQ(c.max_positions, 253952);
    EXPECT_THAT(user_error_of([&] { parse(R"({"chunk_size":64,"local_size":64})"); }),
                ::testing::HasSubstr("dual_chunk_attention_config.local_size: 64 is not below chunk_size, 64"));
  }
}

TEST(ModelConfigs, WhatNewerFamiliesCannotDoIsSaid) {
  using ::testing::HasSubstr;
  const auto error = [](const std::string& type, const std::string& more) {
    std::string text = llama(R"(,"num_key_value_heads":4)" + more);
    text.replace(text.find("llama"), 5, type);
    return user_error_of([&] { model::parse_config(io::Json::parse(text, "config.json")); });
  };
  EXPECT_THAT(error("gemma2", R"(,"hidden_activation":"relu")"),
              HasSubstr("hidden_activation: 'relu' is not supported"));
  EXPECT_THAT(error("gemma2", R"(,"use_bidirectional_attention":true)"), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(error("gemma3_text", R"(,"attn_logit_softcapping":50.0)"), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(error("gemma3_text", R"(,"rope_parameters":{"rope_theta":5e5})"), HasSubstr("one for sliding_attention"));
  EXPECT_THAT(error("granitemoehybrid", ""), HasSubstr("num_local_experts: experts of this family are not supported"));
  EXPECT_THAT(error("granitemoehybrid", R"(,"num_local_experts":0,"layer_types":["mamba","attention","mamba"])"),
              HasSubstr("layer_types: state-space layers (Mamba) are not supported"));
  EXPECT_THAT(error("phi3", R"(,"resid_pdrop":0.1)"), HasSubstr("resid_pdrop: dropout is not supported"));
  EXPECT_THAT(error("phi3", R"(,"rope_scaling":{"type":"linear","factor":2.0})"), HasSubstr("expected longrope"));
  EXPECT_THAT(error("phi3", R"(,"rope_scaling":{"type":"su","short_factor":[1],"long_factor":[1]})"),
              HasSubstr("short_factor: has 1 numbers, expected 8, one per pair that rotates"));
  EXPECT_THAT(error("phi3", R"(,"partial_rotary_factor":1.5)"), HasSubstr("partial_rotary_factor: 1.5 of a head"));
  EXPECT_THAT(error("smollm3", R"(,"no_rope_layers":[1,0])"), HasSubstr("no_rope_layers: names 2 layers"));
}

TEST(ModelConfigs, RealConfigurationsHaveTheirParameterCounts) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "the shared test data is not available";
  const auto folder = *data / "hf_configs";
  EXPECT_EQ(model::load_config(folder / "meta-llama--Meta-Llama-3.1-8B_config.json").parameter_count(), 8030261248);
  EXPECT_EQ(model::load_config(folder / "Qwen--Qwen3-0.6B_config.json").parameter_count(), 596049920);
  EXPECT_EQ(model::load_config(folder / "qwen2.5_0.5b.json").parameter_count(), 494032768);
  EXPECT_EQ(model::load_config(folder / "mistral_7b_instruct.json").parameter_count(), 7241732096);
  EXPECT_EQ(model::load_config(folder / "mistralai--Mixtral-8x7B-v0.1_config.json").parameter_count(), 46702792704);
  EXPECT_EQ(model::load_config(folder / "Qwen--Qwen3-30B-A3B_config.json").parameter_count(), 30532122624);
  EXPECT_EQ(model::load_config(folder / "openai--gpt-oss-20b_config.json").parameter_count(), 20914757184);
}

// Read as the family that has most of its tensors.
TEST(ModelConfigs, AnUnknownFamilyIsHeldAgainstTheKnownOnes) {
  using ::testing::AllOf, ::testing::HasSubstr;
  const auto fixture = source_folder() / "tests/golden/models/qwen3_mixed_window";
  nlohmann::json config = nlohmann::json::parse(read_text(fixture / "config.json"));
  config["model_type"] = "stranger";
  config["use_parallel_block"] = true;
  const io::Json json = io::Json::parse(config.dump(), "config.json");
  EXPECT_FALSE(model::is_known(json));
  EXPECT_TRUE(model::is_known(io::Json::read(fixture / "config.json")));
  EXPECT_THAT(model::describe_unknown(json, fixture),
              AllOf(HasSubstr("'stranger' is not a family"), HasSubstr("families: gemma, gemma2"),
                    HasSubstr("keys that no family has: use_parallel_block\n"),
                    HasSubstr("its tensors have the names of qwen3")));
  // Nothing tells one family from another then: none is named as the one.
  EXPECT_THAT(model::describe_unknown(json, "no such folder"),
              AllOf(HasSubstr("can be read as those of gemma2, "), HasSubstr("qwen3"), HasSubstr("no weights here")));
  nlohmann::json whole = {{"model_type", "stranger"}, {"vision_config", {{"hidden_size", 8}}}, {"text_config", config}};
  EXPECT_THAT(model::describe_unknown(io::Json::parse(whole.dump(), "config.json"), "no such folder"),
              AllOf(HasSubstr("under text_config"), HasSubstr("keys that no family has: use_parallel_block\n")));
  EXPECT_THAT(model::describe_unknown(json, source_folder() / "tests/golden/models/olmo2_norms_behind"),
              AllOf(HasSubstr("nearest by the names of tensors: olmo"), HasSubstr("it has in addition: ")));
}

TEST(ModelConfigs, PublishedModelsHaveTheirParameterCounts) {
  const auto models = nlohmann::json::parse(read_text(source_folder() / "tests/golden/published_configs.json"));
  for (const auto& one : models.at("models")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const ModelConfig c = model::parse_config(io::Json::parse(one.at("config").dump(), "config.json"));
    EXPECT_EQ(c.parameter_count(), one.at("parameters"));
    model::ModelParameters parameters(c);  // what a plan is made of
    std::int64_t count = 0;
    parameters.for_each([&](const weights::Parameter& p) { count += p.size(); });
    EXPECT_EQ(count, one.at("parameters"));
  }
}

TEST(ModelConfigs, PublishedShapesAreThoseOfTheModels) {
  EXPECT_EQ(model::shape_or_config("llama-8b").parameter_count(), 8030261248);
  EXPECT_EQ(model::shape_or_config("qwen3-30b-a3b").parameter_count(), 30532122624);
  EXPECT_EQ(model::shape_or_config("gemma-3-4b").parameter_count(), 3880263168);
  EXPECT_EQ(model::shape_or_config("phi-4-mini").parameter_count(), 3836021760);
  const model::ModelConfig oss = model::shape_or_config("gpt-oss-20b");
  EXPECT_EQ(oss.parameter_count(), 20914757184);
  EXPECT_EQ(oss.layers[0].window, 128);
  EXPECT_EQ(oss.layers[1].window, 0);
  EXPECT_EQ(oss.model_type, "gpt_oss");
}

std::string experts(const std::string& more) {
  return R"({"hidden_size":64,"intermediate_size":96,"vocab_size":100,"num_attention_heads":4,"num_hidden_layers":4,)"
         R"("num_key_value_heads":4,"num_experts_per_tok":2)" +
         more + "}";
}

template <class Parse>
std::string error_in(Parse parse, const std::string& text) {
  try {
    parse(io::Json::parse(text, "config.json"));
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfigs, Qwen3MoeChoosesWhichLayersHaveExperts) {
  const auto parsed = [](const std::string& more) {
    return model::parse_qwen3_moe(
        io::Json::parse(experts(R"(,"num_experts":6,"moe_intermediate_size":20,"head_dim":16)" + more), "config.json"));
  };
  const ModelConfig c = parsed(R"(,"decoder_sparse_step":2,"mlp_only_layers":[3])");
  EXPECT_EQ(c.experts.count, 6);
  EXPECT_EQ(c.experts.intermediate, 20);
  EXPECT_FALSE(c.experts.normalized);
  EXPECT_EQ(c.expert_layers(), 1);
  EXPECT_TRUE(c.layers[1].experts);
  EXPECT_EQ(c.experts.balance, 0.0);
  EXPECT_TRUE(parsed(R"(,"norm_topk_prob":true)").experts.normalized);
  EXPECT_EQ(parsed(R"(,"output_router_logits":true)").experts.balance, 0.001);
}

TEST(ModelConfigs, MistakesAboutExpertsNameTheKey) {
  using ::testing::HasSubstr;
  const auto mixtral = [](const std::string& more) { return error_in(model::parse_mixtral, experts(more)); };
  EXPECT_THAT(mixtral(""), HasSubstr("config.json: num_local_experts"));
  EXPECT_THAT(mixtral(R"(,"num_local_experts":1)"), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(mixtral(R"(,"num_local_experts":5000)"), HasSubstr("256"));
  EXPECT_THAT(mixtral(R"(,"num_local_experts":4,"router_jitter_noise":0.1)"), HasSubstr("router_jitter_noise"));
  const auto gpt_oss = [](const std::string& more) {
    return error_in(model::parse_gpt_oss, experts(R"(,"num_local_experts":4)" + more));
  };
  EXPECT_THAT(gpt_oss(R"(,"swiglu_limit":5.0)"), HasSubstr("config.json: swiglu_limit: only 7 is supported"));
  EXPECT_THAT(gpt_oss(R"(,"swiglu_alpha":1.5)"), HasSubstr("config.json: swiglu_alpha: only 1.702 is supported"));
  EXPECT_EQ(gpt_oss(R"(,"swiglu_limit":7,"swiglu_alpha":1.702)"), "no error");
  EXPECT_THAT(gpt_oss(R"(,"quantization_config":{"quant_method":"awq"})"), HasSubstr("quant_method"));
  EXPECT_THAT(gpt_oss(R"(,"layer_types":["full_attention"])"), HasSubstr("layer_types"));
}

TEST(ModelConfigs, GptOssAsPublished) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "the shared test data is not available";
  const auto folder = *data / "hf_configs";
  const ModelConfig c = model::parse_gpt_oss(io::Json::read(folder / "openai--gpt-oss-20b_config.json"));
  EXPECT_EQ(c.parameter_count(), 20914757184);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.layers[0].window, 128);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_FALSE(c.rope.truncate);
  EXPECT_NEAR(c.rope.attention_factor, 0.1 * std::log(32.0) + 1.0, 1e-12);
  EXPECT_EQ(model::parse_gpt_oss(io::Json::read(folder / "openai--gpt-oss-120b_config.json")).parameter_count(),
            116829156672);
  EXPECT_EQ(model::parse_qwen3_moe(io::Json::read(folder / "Qwen--Qwen3-30B-A3B_config.json")).parameter_count(),
            30532122624);
  EXPECT_EQ(model::parse_mixtral(io::Json::read(folder / "mistralai--Mixtral-8x7B-v0.1_config.json")).parameter_count(),
            46702792704);
}

TEST(ModelRope, PlainFrequenciesAndAngles) {
  model::RopeConfig rope;
  rope.rotary_dim = 4;
  const std::vector<float> table = model::rope_table(rope, 3);
  ASSERT_EQ(table.size(), 3u * 2 * 2);
  EXPECT_NEAR(table[2 * 4 + 0], std::cos(2.0), 1e-6);
  EXPECT_NEAR(table[2 * 4 + 1], std::sin(2.0), 1e-6);
  EXPECT_NEAR(table[2 * 4 + 3], std::sin(0.02), 1e-7);
}

TEST(ModelRope, Llama3KeepsShortWavelengthsAndSlowsLongOnes) {
  model::RopeConfig rope = {
      .kind = model::RopeKind::llama3, .theta = 500000.0, .factor = 8.0, .original_positions = 8192, .rotary_dim = 128};
  model::RopeConfig plain = rope;
  plain.kind = model::RopeKind::plain;
  const auto scaled = model::rope_frequencies(rope), unscaled = model::rope_frequencies(plain);
  EXPECT_EQ(scaled.front(), unscaled.front());
  EXPECT_FLOAT_EQ(scaled.back(), unscaled.back() / 8.0f);
}

}  // namespace
}  // namespace inlay::testing
