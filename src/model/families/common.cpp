#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "model/families/family.h"

namespace inlay::model {

namespace {

double yarn_magnitude(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

void parse_yarn(const io::Json& json, RopeConfig& rope) {
  rope.beta_fast = json.find_number("beta_fast", io::positive_number).value_or(32.0);
  rope.beta_slow = json.find_number("beta_slow", io::positive_number).value_or(1.0);
  rope.truncate = json.find_boolean("truncate").value_or(true);
  const auto given = json.find_number("attention_factor", io::positive_number);
  const auto mscale = json.find_number("mscale"), mscale_all = json.find_number("mscale_all_dim");
  if (given) {
    rope.attention_factor = *given;
  } else if (mscale.value_or(0) != 0 && mscale_all.value_or(0) != 0) {
    rope.attention_factor = yarn_magnitude(rope.factor, *mscale) / yarn_magnitude(rope.factor, *mscale_all);
  } else {
    rope.attention_factor = yarn_magnitude(rope.factor, 1.0);
  }
}

// The scaling stands under rope_parameters (newer files, theta inside) or under rope_scaling (older ones, theta
// beside).
RopeConfig parse_rope(const io::Json& json, std::int64_t head_dim, std::int64_t max_positions) {
  RopeConfig rope;
  std::optional<io::Json> scaling = json.find_object("rope_parameters");
  if (!scaling) scaling = json.find_object("rope_scaling");
  rope.theta = json.find_number("rope_theta", io::positive_number).value_or(10000.0);
  double partial = json.find_number("partial_rotary_factor", io::positive_number).value_or(1.0);
  rope.original_positions = max_positions;
  std::string type = "default";
  if (scaling) {
    rope.theta = scaling->find_number("rope_theta", io::positive_number).value_or(rope.theta);
    partial = scaling->find_number("partial_rotary_factor", io::positive_number).value_or(partial);
    if (const auto old = scaling->find_string("type")) type = *old;
    if (const auto current = scaling->find_string("rope_type")) type = *current;
  }
  rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * partial);
  if (rope.rotary_dim <= 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > head_dim) {
    json.fail("head_dim",
              fmt::format("{} of {} dimensions would rotate; an even number is needed", rope.rotary_dim, head_dim));
  }
  if (type == "default" || !scaling) return rope;

  if (const auto original = scaling->find_integer("original_max_position_embeddings", io::positive_integer)) {
    rope.original_positions = *original;
  }
  if (type == "yarn" && !scaling->has("factor")) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
  } else if (type == "linear" || type == "llama3" || type == "yarn") {
    rope.factor = scaling->number("factor", io::positive_number);
  }
  if (type == "linear") {
    rope.kind = RopeKind::linear;
  } else if (type == "llama3") {
    rope.kind = RopeKind::llama3;
    rope.low_freq_factor = scaling->number("low_freq_factor", io::positive_number);
    rope.high_freq_factor = scaling->number("high_freq_factor", io::positive_number);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      scaling->fail("high_freq_factor", "must be above low_freq_factor");
    }
  } else if (type == "yarn") {
    rope.kind = RopeKind::yarn;
    parse_yarn(*scaling, rope);
  } else {
    scaling->fail("rope_type", fmt::format("'{}' is not supported; known are default, linear, llama3, yarn", type));
  }
  return rope;
}

DType parse_dtype(const io::Json& json) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto text = json.find_string(key);
    if (!text) continue;
    if (const auto dtype = parse_floating_dtype(*text)) return *dtype;
    json.fail(key, fmt::format("'{}' is not a dtype that inlay reads; known are float32, bfloat16, float16", *text));
  }
  return DType::f32;
}

}  // namespace

ModelConfig parse_common(const io::Json& json) {
  ModelConfig c;
  c.hidden = json.integer("hidden_size", io::positive_integer);
  c.intermediate = json.integer("intermediate_size", io::positive_integer);
  c.vocab = json.integer("vocab_size", io::positive_integer);
  c.bos = json.find_integer("bos_token_id").value_or(-1);
  c.heads = json.integer("num_attention_heads", io::positive_integer);
  c.kv_heads = json.find_integer("num_key_value_heads", io::positive_integer).value_or(c.heads);
  if (c.heads % c.kv_heads != 0) {
    json.fail("num_key_value_heads", fmt::format("{} does not divide the {} query heads", c.kv_heads, c.heads));
  }
  if (const auto head_dim = json.find_integer("head_dim", io::positive_integer)) {
    c.head_dim = *head_dim;
  } else if (c.hidden % c.heads == 0) {
    c.head_dim = c.hidden / c.heads;
  } else {
    json.fail("hidden_size",
              fmt::format("{} is not a multiple of {} heads, and head_dim is not given", c.hidden, c.heads));
  }
  if (c.head_dim > 256)
    json.fail("head_dim", fmt::format("{} is above 256, the largest head that is supported", c.head_dim));
  c.max_positions = json.find_integer("max_position_embeddings", io::positive_integer).value_or(2048);
  c.norm_eps = static_cast<float>(json.find_number("rms_norm_eps", io::positive_number).value_or(1e-6));
  c.rope = parse_rope(json, c.head_dim, c.max_positions);
  c.tied_embeddings = json.find_boolean("tie_word_embeddings").value_or(false);
  c.dtype = parse_dtype(json);
  const std::string activation = json.find_string("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    json.fail("hidden_act", fmt::format("'{}' is not supported; SwiGLU models have silu", activation));
  }
  if (json.find_number("attention_dropout").value_or(0.0) != 0.0) {
    json.fail("attention_dropout", "dropout inside attention is not supported; set it to 0");
  }
  c.layers.resize(static_cast<std::size_t>(json.integer("num_hidden_layers", io::positive_integer)));
  return c;
}

}  // namespace inlay::model
