#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "io/safetensors_writer.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "train/checkpoint.h"

// GPT-OSS checkpoints as they are published: experts in MXFP4, stacked, in several shards; and what is written back.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t hidden = 64, width = 32, experts = 3, layers = 2, heads = 4, kv_heads = 2, head_dim = 16;

constexpr const char* config_json = R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
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

Mxfp4Matrix random_mxfp4(std::int64_t out, std::int64_t in, std::uint64_t seed) {
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

  explicit GptOssCheckpoint(Form form) {
    nlohmann::json config = nlohmann::json::parse(config_json);
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

using Form = GptOssCheckpoint::Form;

class ModelGptOss : public ::testing::TestWithParam<Device> {
 protected:
  static std::unique_ptr<train::Engine> engine(const std::filesystem::path& folder, bool experts_train,
                                               DType compute = DType::bf16) {
    const model::ModelConfig config = model::load_config(folder);
    train::EngineOptions options = {.device = GetParam(), .compute = compute};
    options.max_tokens = options.max_document = 24;
    options.logit_rows = 24;
    auto plan = std::make_shared<weights::WeightPlan>();
    model::ModelParameters(config).for_each([&](weights::Parameter& p) {
      if (!experts_train && p.name.find(".experts.") != std::string::npos) plan->frozen.insert(p.name);
    });
    options.weights = plan;
    auto result = train::Engine::create(config, options);
    result->load(io::Checkpoint(folder));
    return result;
  }

  static PackedBatch batch() {
    Document document;
    for (std::int32_t i = 0; i < 24; ++i) document.input_ids.push_back(i * 37 % 96);
    document.labels = document.input_ids;
    return pack(std::span(&document, 1));
  }

  static std::vector<float> logits(train::Engine& engine) {
    std::vector<std::int32_t> rows(24);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
    return engine.decoder().logits(engine.exec(), batch(), rows);
  }

  // The bytes of a checkpoint's tensor.
  static std::string bytes(const io::Checkpoint& checkpoint, const std::string& name) {
    const ConstView view = checkpoint.tensor(name);
    return {static_cast<const char*>(view.data()), view.bytes()};
  }
};

TEST_P(ModelGptOss, LoadsMxfp4ExpertsFromShards) {
  const GptOssCheckpoint checkpoint(Form::mxfp4);
  const auto model = engine(checkpoint.folder.path(), true);
  int checked = 0;
  model->decoder().parameters().for_each([&](weights::Parameter& p) {
    const auto found = checkpoint.matrices.find(p.parts[0].label());
    if (found == checkpoint.matrices.end()) return;
    std::vector<bf16> values(static_cast<std::size_t>(p.size()));
    model->exec().download(values.data(), p.value);
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()), found->second.values) << p.name;
    ++checked;
  });
  EXPECT_EQ(checked, layers * experts * 2);
}

TEST_P(ModelGptOss, Mxfp4AndBf16CheckpointsAreTheSameModel) {
  const GptOssCheckpoint packed(Form::mxfp4), plain(Form::bf16);
  for (const DType compute : {DType::bf16, DType::f32}) {
    EXPECT_EQ(logits(*engine(packed.folder.path(), true, compute)),
              logits(*engine(plain.folder.path(), true, compute)));
  }
}

TEST_P(ModelGptOss, FrozenExpertsAreSavedInMxfp4ByteForByte) {
  const GptOssCheckpoint base(Form::mxfp4);
  const auto model = engine(base.folder.path(), false);
  model->train_step({batch()}, 1, 1e-2);
  const TempFolder out;
  train::save_model(*model, {base.folder.path(), {}}, out.path());
  const io::Checkpoint before(base.folder.path()), after(out.path());
  EXPECT_EQ(before.names(), after.names());
  for (const std::string& name : before.names()) {
    const bool expert = name.find("_blocks") != std::string::npos || name.find("_scales") != std::string::npos;
    if (expert) {
      EXPECT_EQ(bytes(after, name), bytes(before, name)) << name;
    }
  }
  EXPECT_NE(bytes(after, "model.layers.0.self_attn.sinks"), bytes(before, "model.layers.0.self_attn.sinks"));
  EXPECT_THAT(read_text(out / "config.json"), HasSubstr("mxfp4"));
  EXPECT_EQ(logits(*engine(out.path(), false)), logits(*model));
}

TEST_P(ModelGptOss, TrainedExpertsAreSavedInBf16AsTransformersStacksThem) {
  const GptOssCheckpoint base(Form::mxfp4), plain(Form::bf16);
  const auto model = engine(base.folder.path(), true);
  const TempFolder untrained;
  train::save_model(*model, {base.folder.path(), {}}, untrained.path());
  const io::Checkpoint expected(plain.folder.path());
  {
    const io::Checkpoint saved(untrained.path());
    EXPECT_EQ(saved.names(), expected.names());
    for (const std::string& name : saved.names()) EXPECT_EQ(bytes(saved, name), bytes(expected, name)) << name;
  }
  EXPECT_THAT(read_text(untrained / "config.json"), Not(HasSubstr("quantization_config")));

  model->train_step({batch()}, 1, 1e-2);
  const TempFolder trained;
  train::save_model(*model, {base.folder.path(), {}}, trained.path());
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  EXPECT_NE(bytes(io::Checkpoint(trained.path()), name), bytes(expected, name));
  EXPECT_EQ(logits(*engine(trained.path(), true)), logits(*model));
}

TEST_P(ModelGptOss, ErrorsNameTheFileAndTheTensor) {
  const GptOssCheckpoint base(Form::mxfp4);
  nlohmann::json config = nlohmann::json::parse(config_json);
  config["num_local_experts"] = 4;
  base.folder.write("config.json", config.dump());
  EXPECT_THAT(user_error_of([&] { engine(base.folder.path(), true); }), HasSubstr(".safetensors: tensor "));
  config["num_local_experts"] = 3;
  config["intermediate_size"] = 48;  // no multiple of a block
  base.folder.write("config.json", config.dump());
  EXPECT_THAT(user_error_of([&] { engine(base.folder.path(), true); }), HasSubstr("config.json expects"));
}

TEST_P(ModelGptOss, WeightDecayLeavesBiasesOfExpertsAlone) {
  const GptOssCheckpoint base(Form::bf16);
  const model::ModelConfig config = model::load_config(base.folder.path());
  train::EngineOptions options = {.device = GetParam(), .compute = DType::f32};
  options.max_tokens = options.max_document = 24;
  const auto change = [&](double weight_decay) {
    options.optimizer.weight_decay = weight_decay;
    auto model = train::Engine::create(config, options);
    model->load(io::Checkpoint(base.folder.path()));
    model->train_step({batch()}, 1, 1e-2);
    std::map<std::string, std::vector<float>> values;
    model->decoder().parameters().for_each([&](weights::Parameter& p) {
      std::vector<float>& host = values[p.name];
      host.resize(static_cast<std::size_t>(p.size()));
      model->exec().download(host.data(), p.value);
    });
    return values;
  };
  const auto with = change(0.5), without = change(0);
  for (const auto& [name, values] : with) {
    const bool vector = name.ends_with("bias") || name.ends_with("norm") || name.ends_with("sinks");
    EXPECT_EQ(values == without.at(name), vector) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelGptOss, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
