#include "adapter/options.h"

#include <algorithm>

#include "core/problems.h"
#include "core/text.h"

namespace inlay::adapter {

namespace {

// The names are spelt out: what PEFT takes for all-linear differs from version to version, and counts the experts of
// some mixtures in.
ModuleNames target_modules(const AdapterOptions& options, const model::ModelConfig& model) {
  if (!options.target_linear && !options.target_modules.all_linear()) return options.target_modules;
  ModuleNames result{.names = linear_names(model)};
  for (const std::string& name : options.target_modules.names) {
    if (std::ranges::find(result.names, name) == result.names.end()) result.names.push_back(name);
  }
  return result;
}

AdapterConfig config_of(const AdapterOptions& options, const model::ModelConfig& model, const AdapterConfig& defaults) {
  AdapterConfig config;
  config.base_model = defaults.base_model;
  config.rank = options.rank.value_or(defaults.rank);
  config.alpha = options.alpha.value_or(defaults.alpha);
  config.dropout = options.dropout;
  config.target_modules = target_modules(options, model);
  config.exclude_modules = options.exclude_modules;
  config.target_parameters = options.target_parameters;
  config.modules_to_save = options.modules_to_save;
  config.layers = options.layers;
  config.rslora = options.rslora;
  config.dora = options.dora;
  config.ties_embeddings = model.tied_embeddings && !options.modules_to_save.empty();
  return config;
}

std::vector<std::string> names_of(const AdapterTargets& targets) {
  std::vector<std::string> names;
  for (const AdaptedPart& part : targets.parts) names.push_back(part.parameter + "/" + part.module);
  for (const SavedPart& part : targets.saved) names.push_back(part.tensor);
  std::ranges::sort(names);
  return names;
}

// The keys given that say what is adapted.
std::vector<std::string> keys_of(const AdapterOptions& options) {
  std::vector<std::string> keys;
  if (options.target_linear) keys.emplace_back("lora_target_linear");
  if (!options.target_modules.empty()) keys.emplace_back("lora_target_modules");
  if (!options.target_parameters.empty()) keys.emplace_back("lora_target_parameters");
  if (!options.exclude_modules.empty()) keys.emplace_back("lora_exclude_modules");
  if (!options.layers.empty()) keys.emplace_back("peft_layers_to_transform");
  if (!options.modules_to_save.empty()) keys.emplace_back("lora_modules_to_save");
  return keys;
}

void check_agreement(const AdapterOptions& options, const model::ModelConfig& model, const ResolvedAdapter& found,
                     const std::string& source) {
  Problems problems;
  const AdapterConfig& config = found.config;
  const auto differs = [&](const char* key, const auto& given, const auto& has) {
    problems.add("{}: {}: {}, but the adapter in lora_model_dir has {}; leave the key out, or begin a new adapter",
                 source, key, given, has);
  };
  if (options.rank && *options.rank != config.rank) differs("lora_r", *options.rank, config.rank);
  if (options.alpha && *options.alpha != config.alpha) differs("lora_alpha", *options.alpha, config.alpha);
  if (options.rslora && !config.rslora) differs("peft_use_rslora", true, false);
  if (options.dora && !config.dora) differs("peft_use_dora", true, false);
  problems.raise();
  const std::vector<std::string> keys = keys_of(options);
  if (keys.empty()) return;
  // Keys that narrow the choice of targets narrow the adapter's own where none are named: what is left must be all that
  // it has.
  AdapterOptions named = options;
  if (!options.names_targets()) {
    named.target_modules = config.target_modules;
    named.target_parameters = config.target_parameters;
    if (options.exclude_modules.empty()) named.exclude_modules = config.exclude_modules;
    if (options.layers.empty()) named.layers = config.layers;
    if (options.modules_to_save.empty()) named.modules_to_save = config.modules_to_save;
  }
  const AdapterTargets targets =
      find_targets(config_of(named, model, config), model, {.file = source, .options = true});
  if (names_of(targets) != names_of(found.targets)) {
    user_error(
        "{}: {}: these targets are not those of the adapter in lora_model_dir; leave {} out, or begin a new adapter",
        source, join(keys, ", "), keys.size() == 1 ? "it" : "them");
  }
}

}  // namespace

ResolvedAdapter resolve(const AdapterOptions& options, const model::ModelConfig& model, const std::string& base_model,
                        const std::string& source) {
  INLAY_ASSERT(options.enabled(), "there is no adapter to resolve");
  ResolvedAdapter result;
  if (options.model_dir.empty()) {
    result.config = config_of(options, model, {});
    result.targets = find_targets(result.config, model, {.file = source, .options = true});
  } else {
    const std::filesystem::path folder = options.model_dir;
    result.config = read_adapter_config(folder);
    result.targets = find_targets(result.config, model, {.file = (folder / config_file).string()});
    check_agreement(options, model, result, source);
    result.config.dropout = options.dropout;  // it is how one trains, not what an adapter is
  }
  check_trains(result.targets, source);
  result.config.base_model = base_model;
  return result;
}

}  // namespace inlay::adapter
