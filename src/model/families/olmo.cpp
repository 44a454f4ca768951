#include "model/families/family.h"

// Norms behind attention and MLP instead of before them, and of all queries and all keys of a token at once.
namespace inlay::model {

namespace {

ModelConfig parse_any_olmo(const io::Json& json, FamilyDefaults defaults) {
  defaults.norm_eps = 1e-5;
  ModelConfig c = parse_common(json, defaults);
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.input_norms = false;
  c.output_norms = true;
  c.qk_norm = QkNorm::whole;
  return c;
}

}  // namespace

ModelConfig parse_olmo2(const io::Json& json) { return parse_any_olmo(json, {}); }

// Windows on all layers but every fourth; these alone have their rotation scaled.
ModelConfig parse_olmo3(const io::Json& json) {
  ModelConfig c = parse_any_olmo(json, {.theta = 5e5, .local_theta = 5e5});
  set_windows(json, c, parse_window(json, 4096), [](std::int64_t l) { return (l + 1) % 4 != 0; });
  return c;
}

}  // namespace inlay::model
