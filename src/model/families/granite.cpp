#include <algorithm>

#include <fmt/format.h>

#include "model/families/family.h"

namespace inlay::model {

namespace {

ModelConfig parse_any_granite(const io::Json& json) {
  ModelConfig c = parse_common(json, {.bos = 1});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  const auto factor = [&](const char* key) { return json.find_number(key, io::positive_number).value_or(1.0); };
  c.embedding_scale = static_cast<float>(factor("embedding_multiplier"));
  c.residual_scale = static_cast<float>(factor("residual_multiplier"));
  c.score_scale = static_cast<float>(factor("attention_multiplier"));
  c.head_scale = static_cast<float>(1 / factor("logits_scaling"));
  return c;
}

}  // namespace

ModelConfig parse_granite(const io::Json& json) {
  ModelConfig c = parse_any_granite(json);
  c.mlp_bias = json.find_boolean("mlp_bias").value_or(false);
  return c;
}

// Granite 4 with attention in all layers and one MLP each, which is called shared; state-space layers and experts are
// other arithmetic.
ModelConfig parse_granite_hybrid(const io::Json& json) {
  if (json.find_integer("num_local_experts").value_or(8) != 0) {
    json.fail("num_local_experts", "experts of this family are not supported; the dense models have 0");
  }
  const auto types = json.find_array("layer_types");
  const auto attends = [](const io::Json& type) {
    const std::string name = type.as_string();
    return name == "attention" || name == "full_attention";
  };
  if (!types || !std::all_of(types->begin(), types->end(), attends)) {
    json.fail("layer_types",
              "state-space layers (Mamba) are not supported; the dense models have attention everywhere");
  }
  ModelConfig c = parse_any_granite(json);
  if (types->size() != c.layers.size()) {
    json.fail("layer_types", fmt::format("names {} layers, but there are {}", types->size(), c.layers.size()));
  }
  c.intermediate = json.find_integer("shared_intermediate_size", io::positive_integer).value_or(1024);
  if (json.find_string("position_embedding_type").value_or("") != "rope") {
    for (LayerConfig& layer : c.layers) layer.rope = LayerRope::none;
  }
  c.names.gate_up = "model.layers.{}.shared_mlp.input_linear";
  c.names.down = "model.layers.{}.shared_mlp.output_linear";
  return c;
}

}  // namespace inlay::model
