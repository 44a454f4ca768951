#include <algorithm>

#include <fmt/format.h>

#include "backend/grouped_matmul.h"
#include "model/families/family.h"
#include "ops/moe_route.h"

// Families whose layers are a dense family's with experts in place of the MLP.
namespace inlay::model {

void parse_experts(const io::Json& json, ModelConfig& c, const ExpertDefaults& defaults) {
  ExpertsConfig& e = c.experts;
  const auto key = std::find_if(defaults.count_keys.begin(), defaults.count_keys.end(),
                                [&](const char* name) { return json.has(name); });
  const std::string count_key = key == defaults.count_keys.end() ? defaults.count_keys.front() : *key;
  e.count = json.integer(count_key, io::positive_integer);
  e.chosen = json.integer("num_experts_per_tok", io::positive_integer);
  if (e.count > backend::most_groups) {
    json.fail(count_key, fmt::format("{} is above {}, the largest supported number", e.count, backend::most_groups));
  }
  const std::int64_t most = std::min(e.count, ops::most_choices);
  if (e.chosen > most) {
    json.fail("num_experts_per_tok", fmt::format("{} of {} experts; at most {} are possible", e.chosen, e.count, most));
  }
  // The loss that keeps experts evenly used is part of training where the model was made to report router logits.
  if (json.find_boolean("output_router_logits").value_or(false)) {
    e.balance = json.find_number("router_aux_loss_coef", io::non_negative_number).value_or(defaults.balance);
  }
}

ModelConfig parse_mixtral(const io::Json& json) {
  ModelConfig c =
      parse_common(json, {.theta = 1e6, .norm_eps = 1e-5, .max_positions = 131072, .kv_heads = 8, .bos = 1});
  for (LayerConfig& layer : c.layers) layer.window = parse_window(json, 0);
  parse_experts(json, c, {.count_keys = {"num_local_experts", "num_experts"}, .balance = 0.001});
  c.experts.intermediate = c.intermediate;
  if (json.find_number("router_jitter_noise").value_or(0.0) != 0.0) {
    json.fail("router_jitter_noise", "noise on the router's input is not supported; set it to 0");
  }
  for (LayerConfig& layer : c.layers) layer.experts = true;
  c.names.router = "model.layers.{}.block_sparse_moe.gate";
  c.names.expert_gate = "model.layers.{}.block_sparse_moe.experts.{}.w1";
  c.names.expert_up = "model.layers.{}.block_sparse_moe.experts.{}.w3";
  c.names.expert_down = "model.layers.{}.block_sparse_moe.experts.{}.w2";
  return c;
}

ModelConfig parse_qwen3_moe(const io::Json& json) {
  ModelConfig c = parse_common(json, {.max_positions = 32768, .kv_heads = 4});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(false);
  c.qk_norm = QkNorm::heads;
  if (json.find_boolean("use_sliding_window").value_or(false)) {  // then all layers have it
    for (LayerConfig& layer : c.layers) layer.window = parse_window(json, 4096);
  }
  parse_dual_chunk(json, c);
  parse_experts(json, c, {.count_keys = {"num_experts", "num_local_experts"}, .balance = 0.001});
  c.experts.intermediate = json.integer("moe_intermediate_size", io::positive_integer);
  c.experts.normalized = json.find_boolean("norm_topk_prob").value_or(false);
  c.names.router = "model.layers.{}.mlp.gate";
  const std::int64_t step = json.find_integer("decoder_sparse_step", io::positive_integer).value_or(1);
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    c.layers[l].experts = (static_cast<std::int64_t>(l) + 1) % step == 0;
  }
  if (json.has("mlp_only_layers")) {
    const io::IntegerRange layers{.min = 0, .max = c.layer_count() - 1};
    for (const std::int64_t l : json.integers("mlp_only_layers", layers)) {
      c.layers[static_cast<std::size_t>(l)].experts = false;
    }
  }
  return c;
}

}  // namespace inlay::model
