#include "support/fixtures.h"

#include <algorithm>

#include "data/jsonl.h"
#include "io/json.h"
#include "support/device_tensors.h"
#include "support/files.h"

namespace inlay::testing {

namespace fs = std::filesystem;

std::vector<fs::path> model_fixtures() {
  std::vector<fs::path> found;
  for (const fs::path& root :
       {fs::path(INLAY_SOURCE_DIR) / "tests/golden/models", test_data().value_or("") / "fixtures/models"}) {
    if (!fs::is_directory(root)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
      if (!fs::exists(entry.path() / "expected.json")) continue;
      const std::string type = io::Json::read(entry.path() / "config.json").string("model_type");
      const auto known = model::families();
      const bool trained =
          std::any_of(known.begin(), known.end(), [&](const model::Family& f) { return f.model_type == type; });
      if (trained) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Fixture::Fixture(const fs::path& path)
    : folder(path),
      config(model::load_config(path)),
      documents(data::read_jsonl(path / "data.jsonl", config.vocab)),
      expected(io::Json::read(path / "expected.json").raw()),
      tensors(path / "expected.safetensors") {}

std::vector<double> Fixture::tensor(const std::string& name) const {
  const ConstView view = tensors.tensor(name);
  const auto* values = view.as<float>();
  return {values, values + view.size()};
}

std::unique_ptr<train::Engine> Fixture::engine(train::EngineOptions options) const {
  for (const Document& d : documents) {
    options.max_document = std::max(options.max_document, static_cast<std::int64_t>(d.input_ids.size()));
    options.max_tokens += static_cast<std::int64_t>(d.input_ids.size());
  }
  auto engine = train::Engine::create(config, options);
  engine->load(io::Checkpoint(folder));
  return engine;
}

std::vector<FixtureCase> fixture_cases() {
  std::vector<FixtureCase> result;
  for (const auto& folder : model_fixtures()) {
    for (const Device device : devices()) result.push_back({folder, device});
  }
  return result;
}

std::string fixture_case_name(const ::testing::TestParamInfo<FixtureCase>& info) {
  const bool shared = info.param.folder.string().find("golden") == std::string::npos;
  return info.param.folder.filename().string() + (shared ? "_shared_" : "_") + std::string(name_of(info.param.device));
}

std::map<std::string, std::vector<double>> gradients_of(train::Engine& engine) {
  std::map<std::string, std::vector<double>> result;
  engine.decoder().parameters().for_each([&](weights::Parameter& p) {
    for (const weights::Part& part : p.parts) {
      const std::vector<float> values = model::read_gradient(engine.exec(), p, part);
      result["grad." + part.checkpoint_name] = {values.begin(), values.end()};
    }
  });
  return result;
}

}  // namespace inlay::testing
