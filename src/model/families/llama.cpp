#include "model/families/family.h"

namespace inlay::model {

ModelConfig parse_llama(const io::Json& json) {
  ModelConfig c = parse_common(json);
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.mlp_bias = json.find_boolean("mlp_bias").value_or(false);
  return c;
}

ModelConfig parse_mistral(const io::Json& json) {
  ModelConfig c = parse_common(json);
  const std::int64_t window = json.find_integer("sliding_window", io::positive_integer).value_or(0);
  for (LayerConfig& layer : c.layers) layer.window = window;
  return c;
}

}  // namespace inlay::model
