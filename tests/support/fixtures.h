#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "model/families/family.h"
#include "train/engine.h"

namespace inlay::testing {

// Models made by transformers, with what PyTorch computed for them: those of tests/golden, and those of the shared test
// data where it is there.
// Llamas come first, being the plainest, then other dense models.
std::vector<std::filesystem::path> model_fixtures();
std::filesystem::path model_fixture(const std::string& name);

// A model fixture opened for use.
struct Fixture {
  explicit Fixture(const std::filesystem::path& folder);

  std::filesystem::path folder;
  model::ModelConfig config;
  std::vector<Document> documents;
  nlohmann::json expected;      // expected.json
  io::SafetensorsFile tensors;  // expected.safetensors

  std::vector<double> tensor(const std::string& name) const;

  // An engine over the fixture's weights that takes all documents in one batch.
  std::unique_ptr<train::Engine> engine(train::EngineOptions options) const;
};

// A parameter of tests: every fixture on every device.
struct FixtureCase {
  std::filesystem::path folder;
  Device device;
};
std::vector<FixtureCase> fixture_cases();
std::string fixture_case_name(const ::testing::TestParamInfo<FixtureCase>& info);

// Every gradient by its name in the checkpoint.
std::map<std::string, std::vector<double>> gradients_of(train::Engine& engine);

}  // namespace inlay::testing
