#include "model/presets.h"

#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "io/safetensors_writer.h"
#include "model/parameters.h"
#include "model/weights_io.h"

namespace inlay::model {

namespace {

struct Size {
  const char* name;
  const char* meaning;
  std::int64_t hidden, intermediate, layers, heads, kv_heads;
};

constexpr Size sizes[] = {
    {"tiny", "1 M parameters: learns small tasks within a minute on two cores", 128, 384, 4, 4, 2},
    {"small", "13 M parameters", 384, 1024, 8, 6, 2},
};

template <class T>
std::vector<std::byte> encode(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T element(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> encode(const std::vector<float>& values, DType dtype) {
  if (dtype == DType::bf16) return encode<bf16>(values);
  if (dtype == DType::f16) return encode<f16>(values);
  return encode<float>(values);
}

// The deviation of a parameter's initial values; 0 stands for all ones (norms), and negative for zeros (biases).
double deviation(const ModelConfig& config, const weights::Parameter& parameter) {
  if (parameter.name.ends_with("norm")) return 0;
  if (parameter.shape.rank() == 1) return -1;
  const bool writes_stream = parameter.name.ends_with(".output") || parameter.name.ends_with(".down");
  return writes_stream ? 0.02 / std::sqrt(2.0 * static_cast<double>(config.layer_count())) : 0.02;
}

}  // namespace

std::vector<Preset> presets(std::int64_t vocab, std::int32_t bos, std::int32_t eos, std::int32_t pad) {
  std::vector<Preset> result;
  for (const Size& size : sizes) {
    const nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}},
                                           {"model_type", "llama"},
                                           {"hidden_size", size.hidden},
                                           {"intermediate_size", size.intermediate},
                                           {"num_hidden_layers", size.layers},
                                           {"num_attention_heads", size.heads},
                                           {"num_key_value_heads", size.kv_heads},
                                           {"head_dim", size.hidden / size.heads},
                                           {"vocab_size", vocab},
                                           {"max_position_embeddings", 4096},
                                           {"rms_norm_eps", 1e-5},
                                           {"rope_theta", 10000.0},
                                           {"hidden_act", "silu"},
                                           {"attention_bias", false},
                                           {"mlp_bias", false},
                                           {"tie_word_embeddings", true},
                                           {"bos_token_id", bos},
                                           {"eos_token_id", eos},
                                           {"pad_token_id", pad},
                                           {"torch_dtype", "float32"}};
    result.push_back({size.name, size.meaning, config.dump(2) + "\n"});
  }
  return result;
}

void write_random_weights(const ModelConfig& config, std::uint64_t seed, const std::filesystem::path& folder) {
  ModelParameters parameters(config);
  std::vector<io::TensorSpec> specs;
  parameters.for_each([&](weights::Parameter& p) {
    for (const weights::Part& part : p.parts) {
      specs.push_back({part.checkpoint_name, config.dtype, part_shape(p, part).extents()});
    }
  });
  io::ShardedWriter writer(folder, specs);
  const Philox philox{seed};
  std::uint64_t stream = 0;
  parameters.for_each([&](weights::Parameter& p) {
    for (const weights::Part& part : p.parts) {
      const double scale = deviation(config, p);
      std::vector<float> values(static_cast<std::size_t>(part_shape(p, part).size()), scale == 0 ? 1.0f : 0.0f);
      for (std::size_t i = 0; scale > 0 && i < values.size(); ++i) {
        values[i] = static_cast<float>(scale) * philox.normal(i, stream);
      }
      ++stream;
      writer.write(part.checkpoint_name, encode(values, config.dtype));
    }
  });
  writer.finish();
}

}  // namespace inlay::model
