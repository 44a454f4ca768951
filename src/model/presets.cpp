#include "model/presets.h"

#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "io/safetensors_writer.h"
#include "model/families/family.h"
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

struct PublishedShape {
  const char* name;
  const char* meaning;
  const char* config_json;
};

constexpr PublishedShape published[] = {
    {"llama-8b", "Llama 3.1 8B", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false,
  "hidden_act": "silu", "torch_dtype": "bfloat16"
})"},
    {"qwen2.5-7b", "Qwen2.5 7B", R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
  "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "bos_token_id": 151643,
  "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"
})"},
    {"qwen2.5-0.5b", "Qwen2.5 0.5B", R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
  "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "bos_token_id": 151643,
  "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"
})"},
    {"gemma-3-4b", "Gemma 3 4B, its text model", R"({
  "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
  "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024, "sliding_window_pattern": 6,
  "query_pre_attn_scalar": 256, "bos_token_id": 2, "tie_word_embeddings": true,
  "hidden_activation": "gelu_pytorch_tanh", "torch_dtype": "bfloat16"
})"},
    {"phi-4-mini", "Phi-4-mini, documents of up to 4096 tokens", R"({
  "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
  "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064,
  "max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "bos_token_id": 199999, "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"
})"},
    {"gpt-oss-20b", "GPT-OSS 20B, experts in bf16", R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
  "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
  "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": true,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "rope_scaling": {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096},
  "swiglu_limit": 7.0, "bos_token_id": 199998, "tie_word_embeddings": false, "hidden_act": "silu",
  "torch_dtype": "bfloat16"
})"},
    {"qwen3-30b-a3b", "Qwen3 30B-A3B", R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
  "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
  "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000.0, "bos_token_id": 151643, "tie_word_embeddings": false, "hidden_act": "silu",
  "torch_dtype": "bfloat16"
})"},
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

// The deviation of a parameter's initial values; 0 stands for all ones (norms), and negative for zeros (biases, and
// norms that add one themselves).
double deviation(const ModelConfig& config, const weights::Parameter& parameter) {
  if (parameter.role == weights::Role::norm) return config.norm_offset == 0 ? 0 : -1;
  if (!parameter.is_matrix()) return -1;
  const bool writes_stream = parameter.role == weights::Role::attention_output || parameter.role == weights::Role::down;
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

std::vector<Preset> published_shapes() {
  std::vector<Preset> result;
  for (const PublishedShape& shape : published) result.push_back({shape.name, shape.meaning, shape.config_json});
  return result;
}

ModelConfig shape_or_config(const std::string& name) {
  for (const PublishedShape& shape : published) {
    if (name == shape.name) return parse_config(io::Json::parse(shape.config_json, name));
  }
  return load_config(name);
}

void write_random_weights(const ModelConfig& config, std::uint64_t seed, const std::filesystem::path& folder) {
  ModelParameters parameters(config);
  const std::vector<CheckpointTensor> tensors = checkpoint_tensors(parameters);
  std::vector<io::TensorSpec> specs;
  for (const CheckpointTensor& tensor : tensors) {
    specs.push_back({tensor.name, config.dtype, tensor.shape.extents()});
  }
  io::ShardedWriter writer(folder, specs);
  const Philox philox{seed};
  std::uint64_t stream = 0;
  for (const CheckpointTensor& tensor : tensors) {
    std::uint64_t offset = 0;
    for (const auto& [parameter, part] : tensor.parts) {
      const double scale = deviation(config, *parameter);
      const auto count = static_cast<std::size_t>(parameter->size() / parameter->rows() * part->rows);
      std::vector<float> values(count, scale == 0 ? 1.0f : 0.0f);
      for (std::size_t i = 0; scale > 0 && i < count; ++i) {
        values[i] = static_cast<float>(scale) * philox.normal(i, stream);
      }
      ++stream;
      const std::vector<std::byte> bytes = encode(values, config.dtype);
      writer.write_part(tensor.name, offset, bytes);
      offset += bytes.size();
    }
  }
  writer.finish();
}

}  // namespace inlay::model
