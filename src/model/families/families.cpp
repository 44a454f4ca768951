#include <array>
#include <string>

#include "core/error.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "model/families/text_part.h"

namespace inlay::model {

namespace {
constexpr std::array table = {Family{"gemma", parse_gemma},
                              Family{"gemma2", parse_gemma2},
                              Family{"gemma3_text", parse_gemma3_text},
                              Family{"glm", parse_glm},
                              Family{"glm4", parse_glm4},
                              Family{"gpt_oss", parse_gpt_oss},
                              Family{"granite", parse_granite},
                              Family{"granitemoehybrid", parse_granite_hybrid},
                              Family{"llama", parse_llama},
                              Family{"mistral", parse_mistral},
                              Family{"mixtral", parse_mixtral},
                              Family{"olmo2", parse_olmo2},
                              Family{"olmo3", parse_olmo3},
                              Family{"phi3", parse_phi3},
                              Family{"qwen2", parse_qwen2},
                              Family{"qwen3", parse_qwen3},
                              Family{"qwen3_moe", parse_qwen3_moe},
                              Family{"smollm3", parse_smollm3}};
}

std::span<const Family> families() { return table; }

std::set<std::string> known_model_types() {
  std::set<std::string> types;
  for (const Family& family : table) types.emplace(family.model_type);
  for (const TextPart& part : text_parts()) types.emplace(part.model_type);
  return types;
}

namespace {

// What a run with attention of its own has written into its result; mistakes in the texts are found where they are
// compiled.
AttentionText parse_attention(const io::Json& json) {
  AttentionText text;
  const auto given = json.find(attention_key);
  if (!given) return text;
  for (const std::string& key : given->expect_object().keys()) {
    if (key != "mask" && key != "score" && key != "head_bias") {
      given->fail(key, "is not a known key; this model needs a newer version of inlay");
    }
  }
  text.mask = given->find_string("mask").value_or("");
  text.score = given->find_string("score").value_or("");
  if (const auto bias = given->find("head_bias")) {
    for (const double number : bias->as_numbers()) text.head_bias.push_back(static_cast<float>(number));
  }
  return text;
}

}  // namespace

bool is_known(const io::Json& json) { return known_model_types().contains(json.string("model_type")); }

ModelConfig parse_config(const io::Json& json) {
  std::string type = json.string("model_type");
  const TextPart* part = find_text_part(type);
  if (part != nullptr) type = part->family;
  for (const Family& family : families()) {
    if (family.model_type == type) {
      ModelConfig config = family.parse(part != nullptr ? text_config(json, *part) : json);
      config.model_type = type;
      config.attention = parse_attention(json);
      if (part != nullptr) set_text_names(config);
      return config;
    }
  }
  json.fail("model_type",
            fmt::format("'{}' is not a family that inlay trains; expected one of {} (inlay info says more)", type,
                        fmt::join(known_model_types(), ", ")));
}

ModelConfig load_config(const std::filesystem::path& folder_or_file) {
  namespace fs = std::filesystem;
  if (!io::exists(folder_or_file)) user_error("{}: no such model folder", folder_or_file.string());
  if (io::is_file(folder_or_file) && folder_or_file.extension() != ".json") {
    user_error("{}: is a file; expected a model folder, or its config.json", folder_or_file.string());
  }
  const fs::path file = io::is_folder(folder_or_file) ? folder_or_file / "config.json" : folder_or_file;
  if (!io::exists(file) && io::exists(folder_or_file / "adapter_config.json")) {
    user_error(
        "{0}: holds an adapter, not a model: give the folder of its base model, and {0} with --adapter (chat, eval, "
        "generate, grad) or as lora_model_dir (train); inlay merge makes a model of both",
        folder_or_file.string());
  }
  if (!io::exists(file)) user_error("{}: the model folder has no config.json", folder_or_file.string());
  const io::Json json = io::Json::read(file);
  ModelConfig config = parse_config(json);
  if (find_text_part(json.string("model_type")) != nullptr) settle_text_names(json, config, file.parent_path());
  return config;
}

}  // namespace inlay::model
