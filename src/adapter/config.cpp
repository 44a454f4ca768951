#include "adapter/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/problems.h"

namespace inlay::adapter {

bool ModuleNames::all_linear() const {
  return std::ranges::equal(pattern, std::string_view(all_linear_word),
                            [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
}

namespace {

// Read below, or of no consequence to what an adapter computes.
constexpr std::array known_keys = {
    "peft_type", "task_type", "base_model_name_or_path", "inference_mode", "r", "lora_alpha", "lora_dropout",
    "target_modules", "exclude_modules", "target_parameters", "modules_to_save", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "ensure_weight_tying", "bias",
    "init_lora_weights", "auto_mapping", "peft_version", "revision", "runtime_config",
    // PEFT takes it back for the linear layers of these models.
    "fan_in_fan_out",
    // Settings of what is off, or of how an adapter began.
    "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config"};

struct Refused {
  const char* key;
  const char* reason;
};
constexpr std::array refused_keys = {
    Refused{"lora_bias", "a bias of the adapter's own is not supported"},
    Refused{"use_qalora", "QALoRA is not supported"},
    Refused{"alora_invocation_tokens", "adapters that begin at certain tokens (aLoRA) are not supported"},
    Refused{"megatron_config", "layers of Megatron are not supported"},
    Refused{"velora_config", "VeLoRA is not supported"},
    Refused{"monteclora_config", "MonteCLoRA is not supported"},
    Refused{"layer_replication", "models with repeated layers are not supported"},
    Refused{"trainable_token_indices", "training single tokens is not supported; use modules_to_save: [embed_tokens]"},
    Refused{"use_bdlora", "block-diagonal LoRA is not supported"},
    Refused{"arrow_config", "Arrow is not supported"},
    Refused{"kasa_config", "KaSA is not supported"},
};

bool is_off(const nlohmann::json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

ModuleNames module_names(const io::Json& json, const char* key) {
  ModuleNames result;
  const auto found = json.find(key);
  if (!found) return result;
  if (found->is_string()) {
    result.pattern = found->as_string();
  } else {
    result.names = found->as_strings();
  }
  return result;
}

std::vector<std::string> strings(const io::Json& json, const char* key) {
  const auto found = json.find(key);
  return found ? found->as_strings() : std::vector<std::string>{};
}

void parse_layers(const io::Json& json, AdapterConfig& config) {
  if (const auto found = json.find("layers_to_transform")) {
    config.layers = found->is_array() ? found->as_integers(io::non_negative_integer)
                                      : std::vector{found->as_integer(io::non_negative_integer)};
    if (!config.layers.empty() && !config.target_modules.pattern.empty()) {
      json.fail("layers_to_transform", "is for a list of target_modules; a pattern can name the layers itself");
    }
  }
  if (const auto found = json.find("layers_pattern")) {
    const auto patterns = found->is_string() ? std::vector{found->as_string()} : found->as_strings();
    for (const std::string& pattern : patterns) {
      if (pattern != "layers" && !pattern.empty()) {
        json.fail("layers_pattern", fmt::format("'{}' is not what these models call their layers: layers", pattern));
      }
    }
  }
}

// Some initialisations change the base model's weights as well: such an adapter means nothing beside the plain ones.
void check_init(const io::Json& json) {
  const auto init = json.find("init_lora_weights");
  if (!init || init->is_boolean()) return;
  const std::string word = init->as_string();
  for (const std::string_view harmless : {"gaussian", "eva", "orthogonal"}) {
    if (word == harmless) return;
  }
  json.fail("init_lora_weights",
            fmt::format("'{}' changes the base model as well as the adapter; have PEFT save it as an adapter of the "
                        "unchanged base (save_pretrained with path_initial_model_for_weight_conversion)",
                        word));
}

void check_others(const io::Json& json, Problems& problems) {
  for (const std::string& key : json.keys()) {
    if (is_off(json.raw().at(key)) || std::ranges::find(known_keys, key) != known_keys.end()) continue;
    const auto refused = std::ranges::find(refused_keys, key, [](const Refused& r) { return std::string(r.key); });
    problems.add("{}: {}: {}", json.source(), key,
                 refused != refused_keys.end()
                     ? refused->reason
                     : "is not known here, and may change what the adapter computes; expected a configuration as PEFT "
                       "writes it for LoRA");
  }
}

}  // namespace

AdapterConfig parse_adapter_config(const io::Json& json) {
  AdapterConfig config;
  Problems problems;
  problems.gather([&] { json.expect_object(); });
  problems.raise();
  problems.gather([&] {
    const std::string type = json.string("peft_type");
    if (type != "LORA") json.fail("peft_type", fmt::format("'{}' is not supported; expected LORA", type));
  });
  problems.gather([&] {
    const auto task = json.find_string("task_type");
    if (task && *task != "CAUSAL_LM") {
      json.fail("task_type", fmt::format("'{}' is not supported; expected CAUSAL_LM", *task));
    }
  });
  problems.gather([&] {
    const std::string bias = json.find_string("bias").value_or("none");
    if (bias != "none") {
      json.fail("bias",
                fmt::format("'{}' trains biases of the base model, which is not supported; expected none", bias));
    }
  });
  const auto take = [&](auto& member, auto&& read) { problems.gather([&] { member = read(); }); };
  take(config.base_model, [&] { return json.find_string("base_model_name_or_path").value_or(""); });
  take(config.inference_mode, [&] { return json.find_boolean("inference_mode").value_or(false); });
  take(config.rank, [&] { return json.find_integer("r", io::positive_integer).value_or(8); });
  take(config.alpha, [&] { return json.find_number("lora_alpha", io::positive_number).value_or(8); });
  take(config.dropout, [&] {
    const double dropout = json.find_number("lora_dropout", {.min = 0, .max = 1}).value_or(0);
    if (dropout == 1) json.fail("lora_dropout", "1 would drop everything; expected a number below 1");
    return dropout;
  });
  take(config.target_modules, [&] { return module_names(json, "target_modules"); });
  take(config.exclude_modules, [&] { return module_names(json, "exclude_modules"); });
  take(config.target_parameters, [&] { return strings(json, "target_parameters"); });
  take(config.modules_to_save, [&] { return strings(json, "modules_to_save"); });
  problems.gather([&] { parse_layers(json, config); });
  const auto patterns = [&](const char* key, auto& into, auto&& read) {
    problems.gather([&] {
      if (const auto found = json.find_object(key)) {
        for (const std::string& pattern : found->keys()) into.emplace_back(pattern, read(found->at(pattern)));
      }
    });
  };
  patterns("rank_pattern", config.rank_pattern, [](const io::Json& v) { return v.as_integer(io::positive_integer); });
  patterns("alpha_pattern", config.alpha_pattern, [](const io::Json& v) { return v.as_number(io::positive_number); });
  take(config.rslora, [&] { return json.find_boolean("use_rslora").value_or(false); });
  take(config.dora, [&] { return json.find_boolean("use_dora").value_or(false); });
  take(config.ties_embeddings, [&] { return json.find_boolean("ensure_weight_tying").value_or(false); });
  problems.gather([&] { check_init(json); });
  check_others(json, problems);
  problems.raise();
  return config;
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / config_file;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    user_error("{}: not an adapter: there is no {} in it", folder.string(), config_file);
  }
  return parse_adapter_config(io::Json::read(file));
}

namespace {

using Json = nlohmann::json;  // keys in the order of the alphabet, as PEFT writes them

Json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json sorted(std::vector<std::string> names) {
  std::ranges::sort(names);
  return names;
}

Json json_of(const ModuleNames& names) {
  if (names.empty()) return nullptr;
  return names.pattern.empty() ? sorted(names.names) : Json(names.pattern);
}

}  // namespace

std::string to_json(const AdapterConfig& config) {
  Json json = {{"auto_mapping", nullptr},
               {"base_model_name_or_path", config.base_model.empty() ? Json(nullptr) : Json(config.base_model)},
               {"bias", "none"},
               {"fan_in_fan_out", false},
               {"inference_mode", config.inference_mode},
               {"init_lora_weights", true},
               {"layers_pattern", nullptr},
               {"layers_to_transform", config.layers.empty() ? Json(nullptr) : Json(config.layers)},
               {"lora_alpha", number(config.alpha)},
               {"lora_dropout", config.dropout},
               {"modules_to_save", config.modules_to_save.empty() ? Json(nullptr) : sorted(config.modules_to_save)},
               {"peft_type", "LORA"},
               {"r", config.rank},
               {"revision", nullptr},
               // vLLM wants this one to be there.
               {"target_modules", config.target_modules.empty() ? Json::array() : json_of(config.target_modules)},
               {"task_type", "CAUSAL_LM"}};
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) ranks[pattern] = rank;
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern] = number(alpha);
  json["rank_pattern"] = ranks;
  json["alpha_pattern"] = alphas;
  if (!config.exclude_modules.empty()) json["exclude_modules"] = json_of(config.exclude_modules);
  if (!config.target_parameters.empty()) json["target_parameters"] = sorted(config.target_parameters);
  if (config.rslora) json["use_rslora"] = true;
  if (config.dora) json["use_dora"] = true;
  if (config.ties_embeddings) json["ensure_weight_tying"] = true;
  return json.dump(2) + "\n";
}

}  // namespace inlay::adapter
