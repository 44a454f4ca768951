#include "model/families/family.h"

namespace inlay::model {

// Half of each head rotates, in pairs of neighbours; gate and up are one tensor.
ModelConfig parse_glm(const io::Json& json) {
  ModelConfig c = parse_common(
      json, {.norm_eps = 1.5625e-7, .max_positions = 131072, .kv_heads = 2, .head_dim = 128, .partial_rotary = 0.5});
  c.qkv_bias = json.find_boolean("attention_bias").value_or(true);
  c.rope.neighbours = true;
  c.names.gate_up = "model.layers.{}.mlp.gate_up_proj";
  return c;
}

// The same with norms behind attention and MLP too.
ModelConfig parse_glm4(const io::Json& json) {
  ModelConfig c = parse_glm(json);
  c.output_norms = true;
  c.names.attention_output_norm = "model.layers.{}.post_self_attn_layernorm.weight";
  c.names.mlp_output_norm = "model.layers.{}.post_mlp_layernorm.weight";
  return c;
}

}  // namespace inlay::model
