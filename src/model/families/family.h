#pragma once

#include <filesystem>
#include <span>
#include <string_view>

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

// What the families share: sizes, dtype, rotation, activation; with the Llama family's defaults.
ModelConfig parse_common(const io::Json& json);

// The configurations of the families, one per model_type.
ModelConfig parse_llama(const io::Json& json);
ModelConfig parse_mistral(const io::Json& json);
ModelConfig parse_qwen2(const io::Json& json);
ModelConfig parse_qwen3(const io::Json& json);

}  // namespace inlay::model
