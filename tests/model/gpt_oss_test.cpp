#include <gmock/gmock.h>

#include <cstring>

#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/gpt_oss_checkpoint.h"
#include "train/checkpoint.h"

// GPT-OSS checkpoints as they are published: experts in MXFP4, stacked, in several shards; and what is written back.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_EQ(checked, GptOssCheckpoint::layers * GptOssCheckpoint::experts * 2);
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
  train::save_model(*parallel::single_process(), *model, {base.folder.path(), {}}, out.path());
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
  train::save_model(*parallel::single_process(), *model, {base.folder.path(), {}}, untrained.path());
  const io::Checkpoint expected(plain.folder.path());
  {
    const io::Checkpoint saved(untrained.path());
    EXPECT_EQ(saved.names(), expected.names());
    for (const std::string& name : saved.names()) EXPECT_EQ(bytes(saved, name), bytes(expected, name)) << name;
  }
  EXPECT_THAT(read_text(untrained / "config.json"), Not(HasSubstr("quantization_config")));

  model->train_step({batch()}, 1, 1e-2);
  const TempFolder trained;
  train::save_model(*parallel::single_process(), *model, {base.folder.path(), {}}, trained.path());
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  EXPECT_NE(bytes(io::Checkpoint(trained.path()), name), bytes(expected, name));
  EXPECT_EQ(logits(*engine(trained.path(), true)), logits(*model));
}

TEST_P(ModelGptOss, ErrorsNameTheFileAndTheTensor) {
  const GptOssCheckpoint base(Form::mxfp4);
  nlohmann::json config = nlohmann::json::parse(gpt_oss_config);
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
