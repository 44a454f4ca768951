#include "support/deep_model.h"

#include "core/philox.h"

namespace inlay::testing {

DeepModel::DeepModel(std::int64_t layers, const std::string& fixture) {
  config = model::load_config(model_fixture(fixture));
  // Kinds of layers take turns as in the fixture.
  const std::size_t kinds = config.layers.size();
  config.layers.resize(static_cast<std::size_t>(layers));
  for (std::size_t l = kinds; l < config.layers.size(); ++l) config.layers[l] = config.layers[l - kinds];
  config.dtype = DType::f32;
  model::write_random_weights(config, 5, folder.path());
  const Philox philox{3};
  std::uint64_t counter = 0;
  for (const std::vector<std::size_t>& lengths :
       {std::vector<std::size_t>{13, 1, 30}, std::vector<std::size_t>{9, 5}}) {
    std::vector<Document> documents;
    for (const std::size_t length : lengths) {
      Document document;
      for (std::size_t i = 0; i < length; ++i) {
        document.input_ids.push_back(
            static_cast<std::int32_t>(philox.words(counter++)[0] % static_cast<std::uint64_t>(config.vocab)));
      }
      document.labels = document.input_ids;
      documents.push_back(std::move(document));
    }
    batches.push_back(pack(documents));
  }
}

std::unique_ptr<train::Engine> DeepModel::engine(train::EngineOptions options) const {
  options.max_tokens = batches[0].token_count();
  options.max_document = 30;
  auto engine = train::Engine::create(config, options);
  engine->load(io::Checkpoint(folder.path()));
  return engine;
}

}  // namespace inlay::testing
