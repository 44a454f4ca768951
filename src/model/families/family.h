#pragma once

#include <filesystem>
#include <functional>
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

// Whether config.json is one of these families'.
bool is_known(const io::Json& json);
// For a person whose model's family is not known: what is, and what its config.json and its tensors have that these
// have not. The folder may be without weights.
std::string describe_unknown(const io::Json& json, const std::filesystem::path& folder);

// What a family takes where a file is silent, as transformers does (tests/golden/config_defaults.json); the Llama
// family's unless it says otherwise.
struct FamilyDefaults {
  double theta = 10000.0, norm_eps = 1e-6;
  std::int64_t max_positions = 2048;
  std::int64_t kv_heads = 0;          // 0: as many as query heads, which is also what null in a file means
  std::int64_t head_dim = 0;          // 0: hidden size / heads
  std::int64_t heads = 0, vocab = 0;  // 0: a file must say
  std::int64_t bos = -1;              // -1: no token begins a text, which is also what null in a file means
  std::optional<RopeConfig> rope;     // the scaled rotation of a file that has no key about it; else a plain one
  bool quantization_known = false;    // the family reads quantization_config itself
  bool tied = false;                  // the head is the embedding
  bool gelu = false;                  // the gate is gelu, by tanh unless activation_key says otherwise
  const char* activation_key = "hidden_act";
  double partial_rotary = 0;  // share of a head that rotates; 0: the family knows no such thing, all of it does
  // > 0: no scaling but longrope, which was called su and yarn as well. The original length stands beside it, and this
  // is its default.
  std::int64_t longrope_original = 0;
  // > 0: windows rotate by a table of their own, whose theta this is, or what the file has under local_theta_key.
  double local_theta = 0;
  const char* local_theta_key = nullptr;
};

// What the families share: sizes, dtype, rotation, activation.
ModelConfig parse_common(const io::Json& json, const FamilyDefaults& defaults = {});

// Which layers have a window, by layer_types; nothing where the file has none of them.
std::optional<std::vector<bool>> parse_layer_types(const io::Json& json, std::size_t layers);
// sliding_window, where a file may have null for none, and none for the family's own.
std::int64_t parse_window(const io::Json& json, std::int64_t missing);
// Windows for layers that layer_types names, else for those of which `sliding` says so; with the family's local
// rotation where it has one.
void set_windows(const io::Json& json, ModelConfig& config, std::int64_t window,
                 const std::function<bool(std::int64_t layer)>& sliding);

// Dual chunk attention (Qwen's models for a million tokens) is plain attention within a chunk. transformers does not
// know it and attends plainly at any length; here documents that are longer than a chunk are called too long.
void parse_dual_chunk(const io::Json& json, ModelConfig& config);

// The router and the number of experts; what differs between families are spellings and defaults.
struct ExpertDefaults {
  std::vector<const char*> count_keys;  // the first that is there counts
  double balance = 0;                   // router_aux_loss_coef
};
void parse_experts(const io::Json& json, ModelConfig& config, const ExpertDefaults& defaults);

// The configurations of the families, one per model_type.
ModelConfig parse_gemma(const io::Json& json);
ModelConfig parse_gemma2(const io::Json& json);
ModelConfig parse_gemma3_text(const io::Json& json);
ModelConfig parse_glm(const io::Json& json);
ModelConfig parse_glm4(const io::Json& json);
ModelConfig parse_granite(const io::Json& json);
ModelConfig parse_granite_hybrid(const io::Json& json);
ModelConfig parse_llama(const io::Json& json);
ModelConfig parse_mistral(const io::Json& json);
ModelConfig parse_olmo2(const io::Json& json);
ModelConfig parse_olmo3(const io::Json& json);
ModelConfig parse_phi3(const io::Json& json);
ModelConfig parse_qwen2(const io::Json& json);
ModelConfig parse_qwen3(const io::Json& json);
ModelConfig parse_qwen3_moe(const io::Json& json);
ModelConfig parse_mixtral(const io::Json& json);
ModelConfig parse_gpt_oss(const io::Json& json);
ModelConfig parse_smollm3(const io::Json& json);

}  // namespace inlay::model
