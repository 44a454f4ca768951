#include "model/families/family.h"

namespace inlay::model {

// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: queries, keys and values in one tensor, gate and up in another.
ModelConfig parse_phi3(const io::Json& json) {
  ModelConfig c = parse_common(
      json, {.norm_eps = 1e-5, .max_positions = 4096, .bos = 1, .partial_rotary = 1, .longrope_original = 4096});
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) {
    if (json.find_number(key).value_or(0.0) != 0.0) json.fail(key, "dropout is not supported; set it to 0");
  }
  for (LayerConfig& layer : c.layers) layer.window = parse_window(json, 0);
  c.names.qkv = "model.layers.{}.self_attn.qkv_proj";
  c.names.gate_up = "model.layers.{}.mlp.gate_up_proj";
  return c;
}

}  // namespace inlay::model
