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
  set_windows(json, c, parse_window(json, 4096), [](std::int64_t) { return true; });
  return c;
}

}  // namespace inlay::model
