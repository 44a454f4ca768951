#include <gtest/gtest.h>

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

void expect_rope(const model::RopeConfig& rope, const json& reads) {
  const std::string type = reads.at("rope_type");
  EXPECT_EQ(rope.kind, type == "yarn"     ? RopeKind::yarn
                       : type == "llama3" ? RopeKind::llama3
                       : type == "linear" ? RopeKind::linear
                                          : RopeKind::plain);
  EXPECT_EQ(rope.theta, reads.at("rope_theta"));
  EXPECT_EQ(rope.factor, reads.value("factor", 1.0));
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
  EXPECT_EQ(c.experts.balance, reads.at("balance"));
  if (!reads.contains("num_local_experts")) return;
  EXPECT_EQ(c.experts.count, reads.at("num_local_experts"));
  EXPECT_EQ(c.experts.chosen, reads.at("num_experts_per_tok"));
  EXPECT_EQ(c.experts.intermediate, reads.value("moe_intermediate_size", c.intermediate));
  EXPECT_EQ(c.experts.normalized, reads.value("norm_topk_prob", true));
  ASSERT_EQ(reads.value("decoder_sparse_step", 1), 1);
  EXPECT_EQ(c.expert_layers(), c.layer_count());
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
      EXPECT_EQ(c.output_bias, reads.at("attention_bias"));
    }
    EXPECT_EQ(c.mlp_bias, reads.value("mlp_bias", false));
    for (std::size_t l = 0; l < c.layers.size(); ++l) EXPECT_EQ(c.layers[l].window, reads.at("windows").at(l)) << l;
    // What is refused unless it is this.
    EXPECT_EQ(reads.at("hidden_act"), "silu");
    EXPECT_EQ(reads.at("attention_dropout"), 0.0);
    EXPECT_EQ(reads.value("router_jitter_noise", 0.0), 0.0);
    expect_rope(c.rope, reads.at("rope_parameters"));
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
