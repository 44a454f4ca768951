#include <algorithm>

#include <fmt/format.h>

#include "model/families/family.h"

namespace inlay::model {

namespace {

// Windows apply where use_sliding_window is on: to the layers that layer_types names, or, in files without it, to those
// from max_window_layers upwards.
void parse_windows(const io::Json& json, ModelConfig& c) {
  if (!json.find_boolean("use_sliding_window").value_or(false)) return;
  const auto first = json.find_integer("max_window_layers", io::non_negative_integer).value_or(28);
  set_windows(json, c, parse_window(json, 4096), [&](std::int64_t l) { return l >= first; });
}

}  // namespace

void parse_dual_chunk(const io::Json& json, ModelConfig& c) {
  const auto dual = json.find_object("dual_chunk_attention_config");
  if (!dual) return;
  const std::int64_t chunk = dual->integer("chunk_size", io::positive_integer);
  const std::int64_t local = dual->find_integer("local_size", io::non_negative_integer).value_or(0);
  if (local >= chunk) dual->fail("local_size", fmt::format("{} is not below chunk_size, {}", local, chunk));
  c.max_positions = std::min(c.max_positions, chunk - local);
}

ModelConfig parse_qwen2(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 32768, .kv_heads = 32});
  c.qkv_bias = true;  // always, and the output product never has one
  parse_windows(json, c);
  parse_dual_chunk(json, c);
  return c;
}

ModelConfig parse_qwen3(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 32768, .kv_heads = 32, .head_dim = 128});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.qk_norm = QkNorm::heads;
  parse_windows(json, c);
  parse_dual_chunk(json, c);
  return c;
}

}  // namespace inlay::model
