#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/weights_io.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"

// Configurations drawn at random, with keys left out, against transformers: tests/golden/make_random_models.py.
namespace inlay::testing {
namespace {

using nlohmann::json;

// The same numbers as in the script: multiples of 2^-23 in [-1, 1).
std::vector<double> numbers(const std::string& name, std::size_t count) {
  std::uint64_t state = 0xCBF29CE484222325u;
  for (const char byte : name) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  std::vector<double> result;
  for (std::uint64_t i = 1; i <= count; ++i) {
    std::uint64_t x = state + i * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x = x ^ (x >> 31);
    result.push_back(static_cast<double>(x >> 40) / 8388608.0 - 1.0);
  }
  return result;
}

std::vector<float> weights_of(const std::string& name, const Shape& shape, bool gemma) {
  const std::vector<std::int64_t> extents = shape.extents();
  const std::vector<double> drawn = numbers(name, static_cast<std::size_t>(shape.size()));
  double scale = 0.25, offset = 0;
  if (name.find("norm") != std::string::npos) {
    offset = gemma ? 0 : 1;
  } else if (extents.size() > 1 && !name.ends_with("_bias")) {
    const auto widest = static_cast<double>(*std::max_element(extents.begin() + 1, extents.end()));
    const bool embedding = name.find("embed") != std::string::npos;
    scale = embedding ? 0.5 : std::exp2(-std::nearbyint(std::log2(std::sqrt(widest / 3))));
  }
  std::vector<float> result;
  for (const double number : drawn) result.push_back(static_cast<float>(number * scale + offset));
  return result;
}

void write_weights(const model::ModelConfig& config, const std::filesystem::path& folder) {
  model::ModelParameters parameters(config);
  const std::vector<model::CheckpointTensor> tensors = model::checkpoint_tensors(parameters);
  std::vector<io::TensorSpec> specs;
  for (const model::CheckpointTensor& tensor : tensors) {
    specs.push_back({tensor.name, DType::f32, tensor.shape.extents()});
  }
  io::ShardedWriter writer(folder, specs);
  for (const model::CheckpointTensor& tensor : tensors) {
    const std::vector<float> values = weights_of(tensor.name, tensor.shape, config.model_type.starts_with("gemma"));
    writer.write_part(tensor.name, 0, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

// Three times what an error of 1e-5 in random directions makes of a product with numbers(name), and its norm.
void expect_same(const std::string& name, const std::vector<double>& values, const json& expected) {
  const double norm = expected.at(0), product = expected.at(1);
  const std::vector<double> with = numbers(name, values.size());
  EXPECT_NEAR(std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0)), norm, 1e-5 * norm)
      << name;
  EXPECT_NEAR(std::inner_product(values.begin(), values.end(), with.begin(), 0.0), product,
              1e-5 * norm * std::sqrt(3.0))
      << name;
}

std::vector<Document> documents_of(const json& one) {
  std::vector<Document> documents;
  for (const json& given : one.at("documents")) {
    Document document;
    document.input_ids = given.at("input_ids").get<std::vector<std::int32_t>>();
    document.labels = given.at("labels").get<std::vector<std::int32_t>>();
    documents.push_back(document);
  }
  return documents;
}

class ModelRandom : public ::testing::TestWithParam<Device> {};

TEST_P(ModelRandom, LogitsLossAndGradientsAreThoseOfTransformers) {
  const json fixture = json::parse(read_text(source_folder() / "tests/golden/random_models.json"));
  std::set<std::string> seen;
  for (const json& one : fixture.at("cases")) {
    SCOPED_TRACE(one.at("config").dump());
    const model::ModelConfig config = model::parse_config(io::Json::parse(one.at("config").dump(), "config.json"));
    seen.insert(config.model_type);
    EXPECT_EQ(config.parameter_count(), one.at("parameters"));
    const TempFolder folder;
    write_weights(config, folder.path());
    const std::vector<Document> documents = documents_of(one);
    train::EngineOptions options = {
        .device = GetParam(), .compute = DType::f32, .optimizer_state = false, .logit_rows = 64};
    for (const Document& document : documents) {
      const auto length = static_cast<std::int64_t>(document.input_ids.size());
      options.max_document = std::max(options.max_document, length);
      options.max_tokens += length;
    }
    const auto engine = train::Engine::create(config, options);
    engine->load(io::Checkpoint(folder.path()));

    const json& tensors = one.at("tensors");
    for (std::size_t d = 0; d < documents.size(); ++d) {
      std::vector<std::int32_t> rows(documents[d].input_ids.size());
      std::iota(rows.begin(), rows.end(), 0);
      const std::vector<float> logits =
          engine->decoder().logits(engine->exec(), pack(std::span(&documents[d], 1)), rows);
      const std::string name = "logits." + std::to_string(d);
      expect_same(name, {logits.begin(), logits.end()}, tensors.at(name));
    }
    engine->gradients({pack(documents)});
    const double loss = one.at("loss");
    EXPECT_NEAR(engine->decoder().read_loss(engine->exec()).loss, loss, 1e-5 * loss);
    std::size_t gradients = 0;
    for (const auto& [name, values] : gradients_of(*engine)) {
      expect_same(name, values, tensors.at(name));
      ++gradients;
    }
    EXPECT_EQ(gradients + documents.size(), tensors.size());
  }
  EXPECT_EQ(seen.size(), model::families().size());
}

INSTANTIATE_TEST_SUITE_P(, ModelRandom, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
