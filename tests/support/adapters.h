#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"
#include "model/families/family.h"
#include "support/paths.h"

// Adapters made by PEFT, with what it computed for them (tests/golden/make_adapters.py).
namespace inlay::testing {

inline std::filesystem::path adapter_fixture(const std::string& name) {
  return source_folder() / "tests/golden/adapters" / name;
}

inline std::vector<std::filesystem::path> adapter_fixtures() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "tests/golden/adapters")) {
    found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// The folder of the model that an adapter belongs to.
inline std::filesystem::path base_of(const std::filesystem::path& adapter) {
  return source_folder() / "tests/golden/models" / io::Json::read(adapter / "expected.json").string("model");
}

inline model::ModelConfig base_config_of(const std::filesystem::path& adapter) {
  return model::load_config(base_of(adapter));
}

}  // namespace inlay::testing
