#pragma once

#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "io/safetensors_writer.h"
#include "support/device_tensors.h"
#include "support/files.h"

namespace inlay::testing {

inline constexpr const char* gpt_oss_config = R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
  "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "num_local_experts": 3, "num_experts_per_tok": 2,
  "sliding_window": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": true,
  "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
  "truncate": false, "original_max_position_embeddings": 4096}, "initial_context_length": 4096,
  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
  "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})";

// A matrix [out, in] in MXFP4, and the numbers that it stands for, by the formula and not by the reader.
struct Mxfp4Matrix {
  std::vector<std::uint8_t> blocks, scales;
  std::vector<float> values;  // [out, in]
};

inline Mxfp4Matrix random_mxfp4(std::int64_t out, std::int64_t in, std::uint64_t seed) {
  Mxfp4Matrix m;
  const Philox philox{seed};
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::int64_t block = 0; block < out * in / 32; ++block) {
    const auto words = philox.words(static_cast<std::uint64_t>(block));
    m.scales.push_back(static_cast<std::uint8_t>(120 + words[0] % 5));
    for (std::uint64_t byte = 0; byte < 16; ++byte) {
      const auto packed = static_cast<std::uint8_t>(philox.words(static_cast<std::uint64_t>(block), byte + 1)[0]);
      m.blocks.push_back(packed);
      for (const int code : {packed & 15, packed >> 4}) {
        m.values.push_back((code & 8 ? -1.0f : 1.0f) * magnitudes[code & 7] * std::ldexp(1.0f, m.scales.back() - 127));
      }
    }
  }
  return m;
}

// The synthetic checkpoint in a folder of its own, in either form, with the same numbers.
class GptOssCheckpoint {
 public:
  enum class Form { mxfp4, bf16 };
  static constexpr std::int64_t hidden = 64, width = 32, experts = 3, layers = 2, heads = 4, kv_heads = 2,
                                head_dim = 16;

  explicit GptOssCheckpoint(Form form) {
    nlohmann::json config = nlohmann::json::parse(gpt_oss_config);
    if (form == Form::bf16) config.erase("quantization_config");
    folder.write("config.json", config.dump());
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::string layer = fmt::format("model.layers.{}.", l), mlp = layer + "mlp.",
                        attention = layer + "self_attn.";
      add_experts(form, mlp + "experts.gate_up_proj", 2 * width, hidden);
      add_experts(form, mlp + "experts.down_proj", hidden, width);
      add(mlp + "experts.gate_up_proj_bias", {experts, 2 * width}, 0.3f);
      add(mlp + "experts.down_proj_bias", {experts, hidden}, 0.3f);
      add(mlp + "router.weight", {experts, hidden}, 0.3f);
      add(mlp + "router.bias", {experts}, 0.3f);
      add(layer + "input_layernorm.weight", {hidden}, 1.0f);
      add(layer + "post_attention_layernorm.weight", {hidden}, 1.0f);
      add(attention + "sinks", {heads}, 1.0f);
      for (const auto& [name, out, in] : {std::tuple{"q_proj", heads * head_dim, hidden},
                                          {"k_proj", kv_heads * head_dim, hidden},
                                          {"v_proj", kv_heads * head_dim, hidden},
                                          {"o_proj", hidden, heads * head_dim}}) {
        add(attention + name + ".weight", {out, in}, 0.1f);
        add(attention + name + ".bias", {out}, 0.1f);
      }
    }
    add("model.embed_tokens.weight", {96, hidden}, 0.5f);
    add("model.norm.weight", {hidden}, 1.0f);
    add("lm_head.weight", {96, hidden}, 0.1f);
    write();
  }

  TempFolder folder;
  std::map<std::string, Mxfp4Matrix> matrices;  // by "tensor.expert"

 private:
  struct Tensor {
    io::TensorSpec spec;
    std::vector<std::byte> bytes;
  };

  template <class T>
  void put(const std::string& name, std::vector<std::int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors_.push_back({{name, dtype_of<T>(), std::move(shape)}, {bytes.begin(), bytes.end()}});
  }

  void add(const std::string& name, Shape shape, float scale) {
    const std::vector<double> random = random_values(shape.size(), ++seed_, scale);
    put(name, shape.extents(), std::vector<bf16>(random.begin(), random.end()));
  }

  void add_experts(Form form, const std::string& name, std::int64_t out, std::int64_t in) {
    std::vector<std::uint8_t> blocks, scales;
    std::vector<bf16> stacked(static_cast<std::size_t>(experts * in * out));
    for (std::int64_t e = 0; e < experts; ++e) {
      const Mxfp4Matrix m = random_mxfp4(out, in, ++seed_);
      blocks.insert(blocks.end(), m.blocks.begin(), m.blocks.end());
      scales.insert(scales.end(), m.scales.begin(), m.scales.end());
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
          stacked[static_cast<std::size_t>((e * in + i) * out + o)] =
              bf16(m.values[static_cast<std::size_t>(o * in + i)]);
        }
      }
      matrices[fmt::format("{}.{}", name, e)] = m;
    }
    if (form == Form::bf16) return put(name, {experts, in, out}, stacked);
    put(name + "_blocks", {experts, out, in / 32, 16}, blocks);
    put(name + "_scales", {experts, out, in / 32}, scales);
  }

  void write() const {
    std::vector<io::TensorSpec> specs;
    for (const Tensor& tensor : tensors_) specs.push_back(tensor.spec);
    io::ShardedWriter writer(folder.path(), specs, 20'000);
    for (const Tensor& tensor : tensors_) writer.write(tensor.spec.name, tensor.bytes);
    writer.finish();
    EXPECT_GT(writer.shard_count(), 3u);
  }

  std::uint64_t seed_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace inlay::testing
