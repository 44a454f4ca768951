#include "model/families/family.h"

namespace inlay::model {

ModelConfig parse_llama(const io::Json& json) {
  ModelConfig c = parse_common(json, {.bos = 1});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.mlp_bias = json.find_boolean("mlp_bias").value_or(false);
  return c;
}

// The window is that of all layers, or of those that layer_types names.
ModelConfig parse_mistral(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 131072, .kv_heads = 8, .bos = 1});
  const std::int64_t window = parse_window(json, 4096);
  const auto sliding = parse_layer_types(json, c.layers.size());
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    if (!sliding || (*sliding)[l]) c.layers[l].window = window;
  }
  return c;
}

}  // namespace inlay::model
