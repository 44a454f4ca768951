#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "model/config.h"

// A family turns its config.json into a ModelConfig: keys, defaults and names, no arithmetic. A new one is a file here
// and a line in families.cpp.
namespace inlay::model {

struct Family {
  std::string_view model_type;
  ModelConfig (*parse)(const io::Json& json);
};

std::span<const Family> families();

// Reads config.json of a model folder (or the file itself) and picks the family by model_type, never by a path.
ModelConfig load_config(const std::filesystem::path& folder_or_file);

ModelConfig parse_config(const io::Json& json);

// What the families share: sizes, dtype, rotation, activation; with the Llama family's defaults.
ModelConfig parse_common(const io::Json& json);

// The router and the number of experts; what differs between families are spellings and defaults.
struct ExpertDefaults {
  std::vector<const char*> count_keys;  // the first that is there counts
  double balance = 0;                   // router_aux_loss_coef
};
void parse_experts(const io::Json& json, ModelConfig& config, const ExpertDefaults& defaults);

// The configurations of the families, one per model_type.
ModelConfig parse_llama(const io::Json& json);
ModelConfig parse_mistral(const io::Json& json);
ModelConfig parse_qwen2(const io::Json& json);
ModelConfig parse_qwen3(const io::Json& json);
ModelConfig parse_qwen3_moe(const io::Json& json);
ModelConfig parse_mixtral(const io::Json& json);
ModelConfig parse_gpt_oss(const io::Json& json);

}  // namespace inlay::model
