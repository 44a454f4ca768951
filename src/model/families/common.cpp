#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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
// beside). An empty one says nothing.
std::optional<io::Json> find_scaling(const io::Json& json) {
  std::optional<io::Json> found;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto object = json.find_object(key);
    if (!object || object->keys().empty()) continue;
    if (found && found->raw() != object->raw()) {
      json.fail("rope_scaling", "is given, and so is rope_parameters, and they differ; remove one of them");
    }
    found = object;
    for (const std::string& name : object->keys()) {
      if (object->raw().at(name).is_object())
        object->fail(name, "rotations that differ between kinds of layers are not supported");
    }
  }
  return found;
}

void refuse_partial_rotation(const io::Json& json) {
  if (json.find_number("partial_rotary_factor").value_or(1.0) != 1.0) {
    json.fail("partial_rotary_factor", "is not supported by this family; expected 1");
  }
}

RopeConfig parse_rope(const io::Json& json, std::int64_t head_dim, std::int64_t max_positions,
                      const FamilyDefaults& defaults) {
  RopeConfig rope;
  const std::optional<io::Json> scaling = find_scaling(json);
  rope.original_positions = max_positions;
  if (defaults.rope && !json.has("rope_parameters") && !json.has("rope_scaling")) rope = *defaults.rope;
  rope.theta = json.find_number("rope_theta", io::positive_number).value_or(defaults.theta);
  refuse_partial_rotation(json);
  std::string type = "default";
  if (scaling) {
    rope.theta = scaling->find_number("rope_theta", io::positive_number).value_or(rope.theta);
    refuse_partial_rotation(*scaling);
    if (const auto old = scaling->find_string("type")) type = *old;
    if (const auto current = scaling->find_string("rope_type")) type = *current;
  }
  rope.rotary_dim = head_dim;
  if (head_dim % 2 != 0) {
    json.fail("head_dim", fmt::format("{} dimensions would rotate; an even number is needed", head_dim));
  }
  if (type == "default" || !scaling) return rope;

  // Beside the scaling it counts more than inside.
  for (const io::Json& place : {*scaling, json}) {
    if (const auto original = place.find_integer("original_max_position_embeddings", io::positive_integer)) {
      rope.original_positions = *original;
    }
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

std::int64_t parse_kv_heads(const io::Json& json, std::int64_t heads, std::int64_t missing) {
  const char* key = "num_key_value_heads";
  const bool absent = missing > 0 && !json.raw().contains(key);
  const std::int64_t found = absent ? missing : json.find_integer(key, io::positive_integer).value_or(heads);
  if (heads % found != 0) {
    json.fail(key, fmt::format("{} does not divide the {} query heads{}", found, heads,
                               absent ? "; it is this family's default" : ""));
  }
  return found;
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

std::optional<std::vector<bool>> parse_layer_types(const io::Json& json, std::size_t layers) {
  const auto types = json.find_array("layer_types");
  if (!types) return std::nullopt;
  if (types->size() != layers) {
    json.fail("layer_types", fmt::format("names {} layers, but there are {}", types->size(), layers));
  }
  std::vector<bool> sliding;
  for (const io::Json& type : *types) {
    const std::string name = type.as_string();
    if (name != "sliding_attention" && name != "full_attention") {
      type.fail(fmt::format("'{}' is not supported; known are sliding_attention and full_attention", name));
    }
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

std::int64_t parse_window(const io::Json& json, std::int64_t missing) {
  if (!json.raw().contains("sliding_window")) return missing;
  return json.find_integer("sliding_window", io::positive_integer).value_or(0);
}

ModelConfig parse_common(const io::Json& json, const FamilyDefaults& defaults) {
  ModelConfig c;
  c.hidden = json.integer("hidden_size", io::positive_integer);
  c.intermediate = json.integer("intermediate_size", io::positive_integer);
  c.vocab = json.integer("vocab_size", io::positive_integer);
  c.bos = json.raw().contains("bos_token_id") ? json.find_integer("bos_token_id").value_or(-1) : defaults.bos;
  c.heads = json.integer("num_attention_heads", io::positive_integer);
  c.kv_heads = parse_kv_heads(json, c.heads, defaults.kv_heads);
  if (const auto head_dim = json.find_integer("head_dim", io::positive_integer)) {
    c.head_dim = *head_dim;
  } else if (defaults.head_dim > 0) {
    c.head_dim = defaults.head_dim;
  } else if (c.hidden % c.heads == 0) {
    c.head_dim = c.hidden / c.heads;
  } else {
    json.fail("hidden_size",
              fmt::format("{} is not a multiple of {} heads, and head_dim is not given", c.hidden, c.heads));
  }
  if (c.head_dim > 256) json.fail("head_dim", fmt::format("{} is above 256, the largest supported head", c.head_dim));
  c.max_positions = json.find_integer("max_position_embeddings", io::positive_integer).value_or(defaults.max_positions);
  c.norm_eps = static_cast<float>(json.find_number("rms_norm_eps", io::positive_number).value_or(defaults.norm_eps));
  c.rope = parse_rope(json, c.head_dim, c.max_positions, defaults);
  c.tied_embeddings = json.find_boolean("tie_word_embeddings").value_or(false);
  c.dtype = parse_dtype(json);
  const std::string activation = json.find_string("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    json.fail("hidden_act", fmt::format("'{}' is not supported; SwiGLU models have silu", activation));
  }
  if (const auto quantized = json.find_object("quantization_config"); quantized && !defaults.quantization_known) {
    json.fail("quantization_config", "quantized weights of this family are not supported; use the unquantized model");
  }
  if (json.find_number("attention_dropout").value_or(0.0) != 0.0) {
    json.fail("attention_dropout", "dropout inside attention is not supported; set it to 0");
  }
  if (const auto layers = json.find_object("per_layer_config"); layers && !layers->keys().empty()) {
    json.fail("per_layer_config", "layers that differ from the rest of the file are not supported");
  }
  c.layers.resize(static_cast<std::size_t>(json.integer("num_hidden_layers", io::positive_integer)));
  return c;
}

}  // namespace inlay::model
