#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/family.h"

namespace inlay::model {

namespace {

// What all generations have: embeddings times the root of their width, norms by 1 + weight, GeGLU.
ModelConfig parse_any_gemma(const io::Json& json, FamilyDefaults defaults) {
  defaults.head_dim = 256;
  defaults.bos = 2;
  defaults.tied = defaults.gelu = true;
  ModelConfig c = parse_common(json, defaults);
  c.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c.hidden)));
  c.embedding_scale_rounds = true;
  c.norm_offset = 1;
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  if (json.find_boolean("use_bidirectional_attention").value_or(false)) {
    json.fail("use_bidirectional_attention", "is not supported; inlay trains models that see what came before");
  }
  return c;
}

// A softcap that a file may have as null for none, and not at all for the family's own.
float parse_softcap(const io::Json& json, const char* key, double missing) {
  if (!json.raw().contains(key)) return static_cast<float>(missing);
  return static_cast<float>(json.find_number(key, io::positive_number).value_or(0));
}

// From the second generation on: norms behind the blocks too, and a scale of scores apart from the head's size.
void parse_newer(const io::Json& json, ModelConfig& c) {
  c.output_norms = true;
  c.names.mlp_norm = "model.layers.{}.pre_feedforward_layernorm.weight";
  const double scalar = json.find_number("query_pre_attn_scalar", io::positive_number).value_or(256);
  c.score_scale = static_cast<float>(1 / std::sqrt(scalar));
}

}  // namespace

ModelConfig parse_gemma(const io::Json& json) { return parse_any_gemma(json, {.max_positions = 8192, .kv_heads = 16}); }

// Windows on every second layer, beginning with the first, unless layer_types says otherwise.
ModelConfig parse_gemma2(const io::Json& json) {
  ModelConfig c = parse_any_gemma(json, {.max_positions = 8192, .kv_heads = 4, .activation_key = "hidden_activation"});
  parse_newer(json, c);
  c.score_softcap = parse_softcap(json, "attn_logit_softcapping", 50);
  c.logit_softcap = parse_softcap(json, "final_logit_softcapping", 30);
  set_windows(json, c, parse_window(json, 4096), [](std::int64_t l) { return l % 2 == 0; });
  return c;
}

// Windows on all layers but every sixth, with a rotation of their own. Files with images leave out most of what is the
// default.
ModelConfig parse_gemma3_text(const io::Json& json) {
  ModelConfig c = parse_any_gemma(json, {.theta = 1e6,
                                         .max_positions = 131072,
                                         .kv_heads = 4,
                                         .heads = 8,
                                         .vocab = 262208,
                                         .activation_key = "hidden_activation",
                                         .local_theta = 1e4,
                                         .local_theta_key = "rope_local_base_freq"});
  parse_newer(json, c);
  c.qk_norm = QkNorm::heads;
  // transformers reads attn_logit_softcapping here as well, and does not use it.
  if (parse_softcap(json, "attn_logit_softcapping", 0) > 0) {
    json.fail("attn_logit_softcapping", "is not supported by this family; remove it");
  }
  c.logit_softcap = parse_softcap(json, "final_logit_softcapping", 0);
  const auto pattern = json.find_integer("sliding_window_pattern", io::positive_integer).value_or(6);
  set_windows(json, c, parse_window(json, 4096), [&](std::int64_t l) { return (l + 1) % pattern != 0; });
  return c;
}

}  // namespace inlay::model
