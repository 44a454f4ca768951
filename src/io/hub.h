#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Models and datasets of the Hugging Face hub, by their names: in the cache that hf and transformers keep, or
// downloaded into it where the user agrees.
namespace inlay::io {

enum class HubKind : std::uint8_t { model, dataset };

struct HubName {
  HubKind kind = HubKind::model;
  std::string name;           // "org/name"
  std::string revision = {};  // a branch, tag or commit; empty: main
};

// What may be done to get at one.
struct HubAccess {
  bool download = false;
  std::function<void(const std::string& line)> say = {};
};

// Whether a text can be the name of something on the hub: "org/name", and no path.
bool is_hub_name(std::string_view text);

// $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub; empty where no home is known.
std::filesystem::path hub_cache();

// The folder of what was downloaded before, by this program or another.
std::optional<std::filesystem::path> find_in_cache(const HubName& name);

// The same, or else a download, or else a UserError that says how to get it. `wanted` chooses among the files of the
// repository.
std::filesystem::path fetch(const HubName& name, const HubAccess& access,
                            const std::function<bool(const std::string& file)>& wanted);

// The folder that is meant by what a user gives as a model: a path stays as it is, a name is found or fetched. What is
// neither stays as well: whoever reads it says so.
std::string model_folder(const std::string& given, const std::string& revision, const HubAccess& access);

}  // namespace inlay::io
