#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"

// Adapters as PEFT has them: what adapter_config.json says, which of a model's matrices that means, and their tensors.
namespace inlay::adapter {

// Names of modules: a list, of which each stands for all modules that end with it; or a regular expression.
struct ModuleNames {
  std::vector<std::string> names;
  std::string pattern;  // where it is given, there are no names

  bool empty() const { return names.empty() && pattern.empty(); }
  bool all_linear() const;  // the word "all-linear" in place of a pattern
  bool operator==(const ModuleNames&) const = default;
};

inline constexpr const char* all_linear_word = "all-linear";

// What a pattern of names changes: the first that matches counts.
template <class Number>
using NamePatterns = std::vector<std::pair<std::string, Number>>;

struct AdapterConfig {
  std::string base_model;  // base_model_name_or_path
  std::int64_t rank = 8;
  double alpha = 8, dropout = 0;
  ModuleNames target_modules, exclude_modules;
  std::vector<std::string> target_parameters, modules_to_save;
  std::vector<std::int64_t> layers;  // layers_to_transform; empty: all
  NamePatterns<std::int64_t> rank_pattern;
  NamePatterns<double> alpha_pattern;
  bool rslora = false, dora = false;
  bool ties_embeddings = false;  // ensure_weight_tying: of a tied model, embedding and head are saved as one
  bool inference_mode = true;    // whether PEFT freezes the adapter when it loads it

  bool operator==(const AdapterConfig&) const = default;
};

inline constexpr const char* config_file = "adapter_config.json";

// Everything that is wrong with it is one UserError. What PEFT can say and this cannot do is refused; keys that are not
// known are too, unless they are off (null, false, empty).
AdapterConfig parse_adapter_config(const io::Json& json);
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

// As PEFT reads it; the same configuration gives the same bytes. Keys that have PEFT's default and are younger than
// most versions in use are left out, so that old ones read it too.
std::string to_json(const AdapterConfig& config);

}  // namespace inlay::adapter
