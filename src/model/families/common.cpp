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

// LongRoPE: a factor for every pair, other ones for documents longer than what the model first saw.
void parse_longrope(const io::Json& json, std::int64_t max_positions, RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_positions);
  const double factor =
      json.find_number("factor", io::positive_number).value_or(static_cast<double>(max_positions) / original);
  rope.attention_factor = json.find_number("attention_factor", io::positive_number)
                              .value_or(factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original)));
  const auto factors = [&](const char* key) {
    const std::vector<double> numbers = json.at(key).as_numbers(io::positive_number);
    if (static_cast<std::int64_t>(numbers.size()) != rope.rotary_dim / 2) {
      json.fail(key, fmt::format("has {} numbers, expected {}, one per pair that rotates", numbers.size(),
                                 rope.rotary_dim / 2));
    }
    return numbers;
  };
  rope.short_factors = factors("short_factor");
  rope.long_factors = factors("long_factor");
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

// How much of a head rotates. What stands inside the scaling counts more than what stands beside it.
std::int64_t parse_rotary_dim(const io::Json& json, const std::optional<io::Json>& scaling, std::int64_t head_dim,
                              const FamilyDefaults& defaults) {
  const char* key = "partial_rotary_factor";
  const bool known = defaults.partial_rotary > 0;
  double share = json.find_number(key, io::positive_number).value_or(known ? defaults.partial_rotary : 1.0);
  if (scaling) share = scaling->find_number(key, io::positive_number).value_or(share);
  if (!known && share != 1.0) json.fail(key, "is not supported by this family; expected 1");
  if (share > 1.0) json.fail(key, fmt::format("{} of a head cannot rotate; expected at most 1", share));
  const auto dimensions = static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  if (dimensions % 2 != 0 || dimensions == 0) {
    json.fail("head_dim", fmt::format("{} dimensions would rotate; an even number is needed", dimensions));
  }
  return dimensions;
}

// `theta` is what the file has beside its scaling, or the family's own.
RopeConfig parse_rope(const io::Json& json, const std::optional<io::Json>& scaling, double theta, std::int64_t head_dim,
                      std::int64_t max_positions, const FamilyDefaults& defaults) {
  RopeConfig rope;
  rope.original_positions = max_positions;
  if (defaults.rope && !json.has("rope_parameters") && !json.has("rope_scaling")) rope = *defaults.rope;
  rope.theta = theta;
  std::string type = "default";
  if (scaling) {
    rope.theta = scaling->find_number("rope_theta", io::positive_number).value_or(rope.theta);
    if (const auto old = scaling->find_string("type")) type = *old;
    if (const auto current = scaling->find_string("rope_type")) type = *current;
  }
  rope.rotary_dim = parse_rotary_dim(json, scaling, head_dim, defaults);
  if (type == "default" || !scaling) return rope;

  if (defaults.longrope_original > 0) {
    if (type == "su" || type == "yarn") type = "longrope";
    if (type != "longrope") {
      scaling->fail("rope_type", fmt::format("'{}' is not supported by this family; expected longrope", type));
    }
  }
  // Beside the scaling it counts more than inside.
  for (const io::Json& place : {*scaling, json}) {
    if (const auto original = place.find_integer("original_max_position_embeddings", io::positive_integer)) {
      rope.original_positions = *original;
    }
  }
  if (defaults.longrope_original > 0 && !json.has("original_max_position_embeddings")) {
    rope.original_positions = defaults.longrope_original;
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
  } else if (type == "longrope") {
    rope.kind = RopeKind::longrope;
    parse_longrope(*scaling, max_positions, rope);
  } else {
    scaling->fail("rope_type",
                  fmt::format("'{}' is not supported; expected one of default, linear, llama3, yarn, longrope", type));
  }
  return rope;
}

// Of layers without a window and with one: rope_parameters has an object for each, or older files have one scaling,
// which is for the first, and two thetas.
void parse_two_ropes(const io::Json& json, ModelConfig& c, const FamilyDefaults& defaults) {
  const auto theta_of = [&](const char* key, double missing) {
    return key == nullptr ? missing : json.find_number(key, io::positive_number).value_or(missing);
  };
  const auto both = json.find_object("rope_parameters");
  std::optional<io::Json> global, local;
  if (both) {
    for (const std::string& key : both->keys()) {
      if (key != "full_attention" && key != "sliding_attention") {
        both->fail(key, "is not supported here; expected one object for full_attention and one for sliding_attention");
      }
    }
    global = both->find_object("full_attention");
    local = both->find_object("sliding_attention");
  }
  if (const auto old = json.find_object("rope_scaling"); old && !global) global = old;
  const auto parse = [&](const std::optional<io::Json>& scaling, double theta) {
    return parse_rope(json, scaling, theta, c.head_dim, c.max_positions, defaults);
  };
  c.rope = parse(global, theta_of("rope_theta", defaults.theta));
  c.local_rope = parse(local, theta_of(defaults.local_theta_key, defaults.local_theta));
  for (const RopeConfig& rope : {c.rope, c.local_rope}) {
    if (rope.kind == RopeKind::longrope) json.fail("rope_parameters", "longrope is not supported by this family");
  }
}

void parse_activation(const io::Json& json, ModelConfig& c, const FamilyDefaults& defaults) {
  c.gate = defaults.gelu ? MlpGate::gelu_tanh : MlpGate::silu;
  const auto name = json.find_string(defaults.activation_key);
  if (!name) return;
  if (defaults.gelu && *name == "gelu") {  // in the first files of Gemma, for what transformers computes with it
    c.gate = MlpGate::gelu;
    return;
  }
  const bool fits =
      defaults.gelu ? *name == "gelu_pytorch_tanh" || *name == "gelu_new" : *name == "silu" || *name == "swish";
  if (!fits) {
    json.fail(defaults.activation_key,
              fmt::format("'{}' is not supported; {}", *name,
                          defaults.gelu ? "expected gelu_pytorch_tanh or gelu" : "SwiGLU models have silu"));
  }
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
    json.fail(key, fmt::format("'{}' is not a dtype that inlay reads; expected float32, bfloat16 or float16", *text));
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
      type.fail(fmt::format("'{}' is not supported; expected sliding_attention or full_attention", name));
    }
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

std::int64_t parse_window(const io::Json& json, std::int64_t missing) {
  if (!json.raw().contains("sliding_window")) return missing;
  return json.find_integer("sliding_window", io::positive_integer).value_or(0);
}

void set_windows(const io::Json& json, ModelConfig& c, std::int64_t window,
                 const std::function<bool(std::int64_t)>& sliding) {
  const auto types = parse_layer_types(json, c.layers.size());
  for (std::int64_t l = 0; l < c.layer_count(); ++l) {
    if (!(types ? (*types)[static_cast<std::size_t>(l)] : sliding(l))) continue;
    LayerConfig& layer = c.layers[static_cast<std::size_t>(l)];
    layer.window = window;
    if (c.local_rope.rotary_dim > 0) layer.rope = LayerRope::local;
  }
}

ModelConfig parse_common(const io::Json& json, const FamilyDefaults& defaults) {
  ModelConfig c;
  const auto integer_or = [&](const char* key, std::int64_t missing) {
    return missing > 0 && !json.has(key) ? missing : json.integer(key, io::positive_integer);
  };
  c.hidden = json.integer("hidden_size", io::positive_integer);
  c.intermediate = json.integer("intermediate_size", io::positive_integer);
  c.vocab = integer_or("vocab_size", defaults.vocab);
  c.bos = json.raw().contains("bos_token_id") ? json.find_integer("bos_token_id").value_or(-1) : defaults.bos;
  c.heads = integer_or("num_attention_heads", defaults.heads);
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
  if (defaults.local_theta > 0) {
    parse_two_ropes(json, c, defaults);
  } else {
    const double theta = json.find_number("rope_theta", io::positive_number).value_or(defaults.theta);
    c.rope = parse_rope(json, find_scaling(json), theta, c.head_dim, c.max_positions, defaults);
  }
  c.tied_embeddings = json.find_boolean("tie_word_embeddings").value_or(defaults.tied);
  c.dtype = parse_dtype(json);
  parse_activation(json, c, defaults);
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
