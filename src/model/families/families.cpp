#include <array>
#include <string>

#include "core/error.h"
#include "model/families/family.h"

namespace inlay::model {

namespace {
constexpr std::array table = {Family{"gpt_oss", parse_gpt_oss},    Family{"llama", parse_llama},
                              Family{"mistral", parse_mistral},    Family{"mixtral", parse_mixtral},
                              Family{"qwen2", parse_qwen2},        Family{"qwen3", parse_qwen3},
                              Family{"qwen3_moe", parse_qwen3_moe}};
}

std::span<const Family> families() { return table; }

ModelConfig parse_config(const io::Json& json) {
  const std::string type = json.string("model_type");
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == type) {
      ModelConfig config = family.parse(json);
      config.model_type = type;
      return config;
    }
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  json.fail("model_type", fmt::format("'{}' is not a family that inlay trains; known are {}", type, known));
}

ModelConfig load_config(const std::filesystem::path& folder_or_file) {
  namespace fs = std::filesystem;
  if (!fs::exists(folder_or_file)) user_error("{}: no such model folder", folder_or_file.string());
  const fs::path file = fs::is_directory(folder_or_file) ? folder_or_file / "config.json" : folder_or_file;
  if (!fs::exists(file)) user_error("{}: the model folder has no config.json", folder_or_file.string());
  return parse_config(io::Json::read(file));
}

}  // namespace inlay::model
