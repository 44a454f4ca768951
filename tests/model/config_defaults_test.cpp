#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "support/files.h"

// What a config.json leaves out, as transformers reads it: tests/golden/make_config_defaults.py.
namespace inlay::testing {
namespace {

using model::ModelConfig;
using model::RopeKind;
using nlohmann::json;

void expect_rope(const model::RopeConfig& rope, const json& reads, std::int64_t head_dim) {
  const std::string type = reads.at("rope_type");
  EXPECT_EQ(rope.kind, type == "yarn"       ? RopeKind::yarn
                       : type == "llama3"   ? RopeKind::llama3
                       : type == "linear"   ? RopeKind::linear
                       : type == "longrope" ? RopeKind::longrope
                                            : RopeKind::plain);
  EXPECT_EQ(rope.theta, reads.at("rope_theta"));
  EXPECT_EQ(rope.factor, reads.value("factor", 1.0));
  EXPECT_EQ(rope.rotary_dim,
            static_cast<std::int64_t>(static_cast<double>(head_dim) * reads.value("partial_rotary_factor", 1.0)));
  if (type == "longrope") {
    EXPECT_EQ(rope.short_factors, reads.at("short_factor").get<std::vector<double>>());
    EXPECT_EQ(rope.long_factors, reads.at("long_factor").get<std::vector<double>>());
  }
  if (reads.contains("original_max_position_embeddings")) {
    EXPECT_EQ(rope.original_positions, reads.at("original_max_position_embeddings"));
  }
  if (type == "yarn") {  // what is absent here has its default in the formula itself
    EXPECT_EQ(rope.beta_fast, reads.value("beta_fast", 32.0));
    EXPECT_EQ(rope.beta_slow, reads.value("beta_slow", 1.0));
    EXPECT_EQ(rope.truncate, reads.value("truncate", true));
  }
}

void expect_experts(const ModelConfig& c, const json& reads) {
  const bool dense = reads.value("num_local_experts", 0) == 0;
  EXPECT_EQ(c.experts.balance, dense ? json(0) : reads.at("balance"));
  if (dense) return;
  EXPECT_EQ(c.experts.count, reads.at("num_local_experts"));
  EXPECT_EQ(c.experts.chosen, reads.at("num_experts_per_tok"));
  EXPECT_EQ(c.experts.intermediate, reads.value("moe_intermediate_size", c.intermediate));
  EXPECT_EQ(c.experts.normalized, reads.value("norm_topk_prob", true));
  ASSERT_EQ(reads.value("decoder_sparse_step", 1), 1);
  EXPECT_EQ(c.expert_layers(), c.layer_count());
}

// A number, and nothing where a file has null.
float number_or(const json& reads, const char* key, float missing) {
  const auto found = reads.find(key);
  return found == reads.end() || found->is_null() ? missing : found->get<float>();
}

// What only some families have.
void expect_particulars(const ModelConfig& c, const json& reads) {
  const bool gemma = c.model_type.starts_with("gemma");
  const float root = gemma ? std::sqrt(static_cast<float>(c.hidden)) : 1.0f;
  EXPECT_FLOAT_EQ(c.embedding_scale, number_or(reads, "embedding_multiplier", root));
  EXPECT_EQ(c.residual_scale, number_or(reads, "residual_multiplier", 1));
  EXPECT_FLOAT_EQ(c.head_scale, 1 / number_or(reads, "logits_scaling", 1));
  const float scalar = number_or(reads, "query_pre_attn_scalar", 0);
  EXPECT_FLOAT_EQ(c.score_scale, scalar > 0 ? 1 / std::sqrt(scalar) : number_or(reads, "attention_multiplier", 0));
  EXPECT_EQ(c.score_softcap, number_or(reads, "attn_logit_softcapping", 0));
  EXPECT_EQ(c.logit_softcap, number_or(reads, "final_logit_softcapping", 0));
  if (c.model_type == "granitemoehybrid") {
    EXPECT_EQ(c.intermediate, reads.at("shared_intermediate_size"));
    EXPECT_EQ(c.layers[0].rope != model::LayerRope::none, reads.at("position_embedding_type") == "rope");
  }
  if (!reads.contains("no_rope_layers")) return;
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    EXPECT_EQ(c.layers[l].rope != model::LayerRope::none, reads.at("no_rope_layers").at(l) == 1) << l;
  }
}

TEST(ModelConfigDefaults, AreThoseOfTransformers) {
  const json fixture = json::parse(read_text(source_folder() / "tests/golden/config_defaults.json"));
  std::set<std::string> seen;
  for (const json& one : fixture.at("cases")) {
    const json& reads = one.at("reads");
    SCOPED_TRACE(one.at("config").dump());
    const ModelConfig c = model::parse_config(io::Json::parse(one.at("config").dump(), "config.json"));
    seen.insert(c.model_type);
    EXPECT_EQ(c.kv_heads, reads.at("num_key_value_heads"));
    EXPECT_EQ(c.head_dim, reads.at("head_dim"));
    EXPECT_EQ(c.max_positions, reads.at("max_position_embeddings"));
    EXPECT_EQ(c.norm_eps, reads.at("rms_norm_eps").get<float>());
    EXPECT_EQ(c.tied_embeddings, reads.at("tie_word_embeddings"));
    EXPECT_EQ(c.bos, reads.at("bos_token_id").is_null() ? -1 : reads.at("bos_token_id").get<std::int64_t>());
    if (reads.contains("attention_bias")) {
      EXPECT_EQ(c.qkv_bias, reads.at("attention_bias"));
      EXPECT_EQ(c.output_bias, reads.at("attention_bias") && !c.model_type.starts_with("glm"));
    }
    EXPECT_EQ(c.mlp_bias, reads.value("mlp_bias", false));
    for (std::size_t l = 0; l < c.layers.size(); ++l) EXPECT_EQ(c.layers[l].window, reads.at("windows").at(l)) << l;
    // What is refused unless it is this.
    const char* activation = reads.contains("hidden_act") ? "hidden_act" : "hidden_activation";
    EXPECT_EQ(reads.at(activation), c.gate == model::MlpGate::gelu_tanh ? "gelu_pytorch_tanh" : "silu");
    EXPECT_EQ(reads.at("attention_dropout"), 0.0);
    EXPECT_EQ(reads.value("router_jitter_noise", 0.0), 0.0);
    const json& rope = reads.at("rope_parameters");
    expect_rope(c.rope, rope.contains("full_attention") ? rope.at("full_attention") : rope, c.head_dim);
    if (rope.contains("sliding_attention")) expect_rope(c.local_rope, rope.at("sliding_attention"), c.head_dim);
    expect_particulars(c, reads);
    expect_experts(c, reads);
  }
  EXPECT_EQ(seen.size(), model::families().size());
}

TEST(ModelConfigDefaults, ADefaultThatDoesNotFitIsSaidToBeOne) {
  const std::string text =
      R"({"model_type":"mistral","hidden_size":60,"intermediate_size":96,"vocab_size":100,"num_attention_heads":6,)"
      R"("num_hidden_layers":2})";
  EXPECT_EQ(user_error_of([&] { model::parse_config(io::Json::parse(text, "config.json")); }),
            "config.json: num_key_value_heads: 8 does not divide the 6 query heads; it is this family's default");
}

}  // namespace
}  // namespace inlay::testing
