#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/targets.h"

namespace inlay::adapter {

enum class AdapterKind : std::uint8_t { none, lora, qlora };
// What A and B are at first: A random and B zero, as PEFT's "gaussian"; the largest singular directions of the weight,
// taken out of it; or A along directions that carry the least of what the model knows, and B zero.
enum class LoraInit : std::uint8_t { gaussian, pissa, free };
inline std::string_view name_of(LoraInit init) {
  return init == LoraInit::pissa ? "pissa" : init == LoraInit::free ? "free" : "gaussian";
}

// The keys adapter, lora_*, peft_* and load_in_*: what is trained beside the base model.
struct AdapterOptions {
  AdapterKind kind = AdapterKind::none;
  std::optional<std::int64_t> rank;  // absent: as model_dir says
  std::optional<double> alpha;
  double dropout = 0;
  ModuleNames target_modules, exclude_modules;
  bool target_linear = false;
  std::vector<std::string> target_parameters, modules_to_save;
  std::vector<std::int64_t> layers;  // empty: all
  bool rslora = false, dora = false;
  std::string model_dir;         // an adapter to go on from; empty: a new one
  std::optional<LoraInit> init;  // absent: gaussian, or as model_dir has it
  double free_ratio = 0.25;      // of lora_init: free
  bool load_in_4bit = false, load_in_8bit = false, load_in_fp8 = false;

  bool enabled() const { return kind != AdapterKind::none; }
  // Whether it is kept to directions that must be found first.
  bool keeps_to_free() const { return enabled() && init == LoraInit::free; }
  bool names_targets() const { return target_linear || !target_modules.empty() || !target_parameters.empty(); }
};

// The keys that decide which matrices are adapted, for messages.
inline constexpr const char* target_keys =
    "lora_target_linear, lora_target_modules, lora_target_parameters, lora_exclude_modules, peft_layers_to_transform "
    "and lora_modules_to_save";

// What the options come to for a model: what adapter_config.json will say, and the matrices it means.
struct ResolvedAdapter {
  AdapterConfig config;
  AdapterTargets targets;
};

// With model_dir both are that adapter's, and the options may not contradict them. source names the options in
// messages.
ResolvedAdapter resolve(const AdapterOptions& options, const model::ModelConfig& model, const std::string& base_model,
                        const std::string& source);

}  // namespace inlay::adapter
