#include <fmt/format.h>

#include "model/families/family.h"

namespace inlay::model {

// Layers without rotation: those where no_rope_layers has a 0, or every fourth.
ModelConfig parse_smollm3(const io::Json& json) {
  ModelConfig c =
      parse_common(json, {.theta = 2e6, .max_positions = 32768, .kv_heads = 4, .bos = 128000, .tied = true});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.mlp_bias = json.find_boolean("mlp_bias").value_or(false);
  const auto interval = json.find_integer("no_rope_layer_interval", io::positive_integer).value_or(4);
  const auto listed = json.find_integers("no_rope_layers", {.min = 0, .max = 1});
  if (listed && listed->size() != c.layers.size()) {
    json.fail("no_rope_layers", fmt::format("names {} layers, but there are {}", listed->size(), c.layers.size()));
  }
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const bool rotates = listed ? (*listed)[l] != 0 : (static_cast<std::int64_t>(l) + 1) % interval != 0;
    if (!rotates) c.layers[l].rope = LayerRope::none;
  }
  const bool windows = json.find_boolean("use_sliding_window").value_or(false);
  set_windows(json, c, parse_window(json, 0),
              [&](std::int64_t l) { return windows && c.layers[static_cast<std::size_t>(l)].rope == LayerRope::none; });
  return c;
}

}  // namespace inlay::model
