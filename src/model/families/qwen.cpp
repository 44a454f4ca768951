#include "model/families/family.h"

namespace inlay::model {

namespace {

// Windows apply where use_sliding_window is on: to the layers that layer_types names, or, in files without it, to those
// from max_window_layers upwards.
void parse_windows(const io::Json& json, ModelConfig& c) {
  if (!json.find_boolean("use_sliding_window").value_or(false)) return;
  const std::int64_t window = parse_window(json, 4096);
  const auto types = parse_layer_types(json, c.layers.size());
  const auto first = json.find_integer("max_window_layers", io::non_negative_integer).value_or(28);
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const bool sliding = types ? (*types)[l] : static_cast<std::int64_t>(l) >= first;
    if (sliding) c.layers[l].window = window;
  }
}

}  // namespace

ModelConfig parse_qwen2(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 32768, .kv_heads = 32});
  c.qkv_bias = true;  // always, and the output product never has one
  parse_windows(json, c);
  return c;
}

ModelConfig parse_qwen3(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 32768, .kv_heads = 32, .head_dim = 128});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.qk_norm = true;
  parse_windows(json, c);
  return c;
}

}  // namespace inlay::model
