#pragma once

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "core/philox.h"
#include "model/presets.h"
#include "support/any_start.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "weights/weight.h"

namespace inlay::testing {

// A model of random weights whose layers can multiply in fp8, and one batch of documents.
struct Fp8Model {
  explicit Fp8Model(const std::string& config_json) {
    std::ofstream(folder.path() / "config.json") << config_json;
    config = model::load_config(folder.path());
    model::write_random_weights(config, 5, folder.path());
    const Philox philox{3};
    std::uint64_t counter = 0;
    std::vector<Document> documents;
    for (const std::size_t length : {70, 1, 64, 13}) {
      Document document;
      for (std::size_t i = 0; i < length; ++i) {
        document.input_ids.push_back(static_cast<std::int32_t>(philox.words(counter++)[0] % 97));
      }
      document.labels = document.input_ids;
      for (std::size_t i = 4; i < length; i += 5) document.labels[i] = ignore_label;
      documents.push_back(std::move(document));
    }
    batches = {pack(documents)};
  }

  std::unique_ptr<train::Engine> engine(train::EngineOptions options,
                                        const weights::StartTensors* start = nullptr) const {
    options.max_tokens = batches[0].token_count();
    options.max_document = 70;
    auto engine = train::Engine::create(config, options);
    engine->load(io::Checkpoint(folder.path()));
    engine->start(start);
    return engine;
  }

  TempFolder folder;
  model::ModelConfig config;
  std::vector<PackedBatch> batches;
};

// Sizes that the products pad (144, 272), and some that they need not (128, 256).
struct Fp8Llama : Fp8Model {
  explicit Fp8Llama(std::int64_t hidden = 144, std::int64_t intermediate = 272, std::int64_t layers = 3,
                    std::int64_t vocab = 97, bool tied = false)
      : Fp8Model(fmt::format(
            R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": {},
                 "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 32, "vocab_size": {}, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
                 "rope_theta": 10000.0, "tie_word_embeddings": {}, "torch_dtype": "float32"}})",
            hidden, intermediate, layers, vocab, tied)) {}
};

inline model::Fp8Options with(ops::Fp8Recipe recipe, DType gradients = DType::e4m3) {
  return {.settings = {.recipe = recipe, .gradients = gradients}};
}

inline double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const auto& x, const auto& y) { return std::inner_product(x.begin(), x.end(), y.begin(), 0.0); };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

// What trains in the place of matrices: its gradients, after gradients().
inline std::map<std::string, std::vector<double>> own_gradients_of(train::Engine& engine) {
  std::map<std::string, std::vector<double>> result;
  for (weights::Weight* weight : engine.decoder().weights()) {
    weight->for_each_own([&](weights::Parameter& p) {
      std::vector<float> values(static_cast<std::size_t>(p.grad.size()));
      engine.exec().download(values.data(), p.grad);
      result[p.name].assign(values.begin(), values.end());
    });
  }
  return result;
}

}  // namespace inlay::testing
