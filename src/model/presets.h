#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/config.h"

namespace inlay::model {

struct Preset {
  std::string name, meaning;
  std::string config_json;
};
// Models made from nothing: config.json of a small Llama, for demonstrations and tests.
std::vector<Preset> presets(std::int64_t vocab, std::int32_t bos, std::int32_t eos, std::int32_t pad);

// The shapes of models that others have published, so that plans and benchmarks need no file.
std::vector<Preset> published_shapes();
// One of these by its name; or config.json of a folder, or that file.
ModelConfig shape_or_config(const std::string& name);

// Writes model.safetensors with normal weights (deviation 0.02; those that write into the residual stream smaller with
// depth), norms of one and biases of zero, in the configuration's dtype. The same seed gives the same file.
void write_random_weights(const ModelConfig& config, std::uint64_t seed, const std::filesystem::path& folder);

}  // namespace inlay::model
