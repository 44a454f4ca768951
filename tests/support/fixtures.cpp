#include "support/fixtures.h"

#include <algorithm>

#include "core/text.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "io/json.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/paths.h"

namespace inlay::testing {

namespace fs = std::filesystem;

std::vector<fs::path> model_fixtures() {
  std::vector<fs::path> found;
  for (const fs::path& root : {source_folder() / "tests/golden/models", test_data().value_or("") / "fixtures/models"}) {
    if (!fs::is_directory(root)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
      if (!fs::exists(entry.path() / "expected.json")) continue;
      if (model::is_known(io::Json::read(entry.path() / "config.json"))) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::stable_partition(found.begin(), found.end(), [](const fs::path& folder) {
    return io::Json::read(folder / "config.json").find_integer("num_experts_per_tok").value_or(0) == 0;
  });
  std::stable_partition(found.begin(), found.end(), [](const fs::path& folder) {
    return io::Json::read(folder / "config.json").string("model_type") == "llama";
  });
  return found;
}

fs::path model_fixture(const std::string& name) {
  for (const fs::path& folder : model_fixtures()) {
    if (folder.filename() == name) return folder;
  }
  throw std::runtime_error("no fixture " + name);
}

namespace {

std::vector<Document> token_documents(const fs::path& file, std::int64_t vocab) {
  data::Documents documents;
  documents.add(data::read_dataset({.path = file.string(), .format = {.type = "tokens"}}, {.vocab = vocab}));
  return documents.read_all();
}

}  // namespace

Fixture::Fixture(const fs::path& path)
    : folder(path),
      config(model::load_config(path)),
      documents(token_documents(path / "data.jsonl", config.vocab)),
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

namespace {

// transformers' name of a part's gradient: it has one tensor for all experts of a layer, whatever the checkpoint has.
std::string gradient_name(const weights::Parameter& p, const weights::Part& part) {
  const std::vector<std::string> words = split(p.name, '.');
  if (words.size() == 6 && words[3] == "experts") {
    return fmt::format("grad.model.layers.{}.mlp.experts.{}_proj", words[1], words[5]);
  }
  std::string name = part.checkpoint_name;
  const std::string_view old = "block_sparse_moe";
  if (const auto at = name.find(old); at != std::string::npos) name.replace(at, old.size(), "mlp");
  return "grad." + name;
}

}  // namespace

std::map<std::string, std::vector<double>> gradients_of(train::Engine& engine) {
  std::map<std::string, std::vector<double>> result;
  engine.decoder().parameters().for_each([&](weights::Parameter& p) {
    for (const weights::Part& part : p.parts) {
      const std::vector<float> values = model::read_gradient(engine.exec(), p, part);
      std::vector<double>& whole = result[gradient_name(p, part)];
      whole.insert(whole.end(), values.begin(), values.end());
    }
  });
  return result;
}

}  // namespace inlay::testing
