#pragma once

#include <nlohmann/json.hpp>

#include "objective/divergence.h"
#include "objective/preference.h"
#include "support/fixtures.h"

// What PyTorch and TRL say about a model's losses (tests/golden/make_objectives.py).
namespace inlay::testing {

struct ObjectiveFixture {
  explicit ObjectiveFixture(const std::string& model);

  std::filesystem::path folder;
  Fixture model;
  nlohmann::json cases;

  std::vector<std::string> names() const;
  // What a case is about, in one batch.
  std::vector<Document> documents(const std::string& name) const;
  // An engine that learns it, ready to take them. A teacher is loaded where the case has one.
  std::unique_ptr<train::Engine> engine(const std::string& name, train::EngineOptions options) const;
  std::vector<double> gradient(const std::string& name, const std::string& key) const;
  const nlohmann::json& at(const std::string& name) const { return cases.at("cases").at(name); }
};

}  // namespace inlay::testing
