#pragma once

#include <filesystem>
#include <optional>
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

// Where config.json of a model that was trained with other attention than its family's says so (AttentionText).
inline constexpr const char* attention_key = "inlay_attention";

// Reads config.json of a model folder (or the file itself) and picks the family by model_type, never by a path.
ModelConfig load_config(const std::filesystem::path& folder_or_file);

ModelConfig parse_config(const io::Json& json);

// What a family takes where a file is silent, as transformers does (tests/golden/config_defaults.json); the Llama
// family's unless it says otherwise.
struct FamilyDefaults {
  double theta = 10000.0, norm_eps = 1e-6;
  std::int64_t max_positions = 2048;
  std::int64_t kv_heads = 0;        // 0: as many as query heads, which is also what null in a file means
  std::int64_t head_dim = 0;        // 0: hidden size / heads
  std::int64_t bos = -1;            // -1: no token begins a text, which is also what null in a file means
  std::optional<RopeConfig> rope;   // the scaled rotation of a file that has no key about it; else a plain one
  bool quantization_known = false;  // the family reads quantization_config itself
};

// What the families share: sizes, dtype, rotation, activation.
ModelConfig parse_common(const io::Json& json, const FamilyDefaults& defaults = {});

// Which layers have a window, by layer_types; nothing where the file has none of them.
std::optional<std::vector<bool>> parse_layer_types(const io::Json& json, std::size_t layers);
// sliding_window, where a file may have null for none, and none for the family's own.
std::int64_t parse_window(const io::Json& json, std::int64_t missing);

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
