#include "adapter/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "io/checkpoint.h"
#include "support/adapters.h"
#include "support/files.h"

namespace inlay::adapter {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::user_error_of;

// Every value of an adapter file, to be written again.
AdapterSource source_of(const AdapterFile& file) {
  return {.a = [&](const AdaptedPart& part) { return file.a(part); },
          .b = [&](const AdaptedPart& part) { return file.b(part); },
          .magnitude = [&](const AdaptedPart& part) { return file.magnitude(part); },
          .saved =
              [&](const SavedPart& part, DType dtype, const AdapterSource::Sink& sink) {
                const ConstView view = file.saved(part);
                ASSERT_EQ(view.dtype(), dtype);
                const std::span bytes(static_cast<const std::byte*>(view.data()), view.bytes());
                sink(bytes.size() / 2, bytes.subspan(bytes.size() / 2));
                sink(0, bytes.first(bytes.size() / 2));
              }};
}

void write_adapter(const fs::path& folder, const AdapterConfig& config, const AdapterTargets& targets,
                   const AdapterOrigin& origin, const AdapterSource& source, DType dtype = DType::f32) {
  io::SafetensorsWriter writer = tensors_writer(folder, targets, origin, dtype);
  write_tensors(writer, targets, source, dtype);
  writer.finish();
  io::write_file_atomic(folder / config_file, to_json(config));
}

TEST(AdapterFile, TensorsAreNamedAndShapedAsPeftsAre) {
  for (const fs::path& folder : testing::adapter_fixtures()) {
    SCOPED_TRACE(folder.filename());
    const AdapterTargets targets =
        find_targets(read_adapter_config(folder), testing::base_config_of(folder), {.file = folder.string()});
    std::map<std::string, std::vector<std::int64_t>> ours, theirs;
    for (const AdapterTensor& tensor : adapter_tensors(targets)) ours[tensor.name] = tensor.shape;
    const io::SafetensorsFile file(folder / tensors_file);
    for (const io::TensorInfo& info : file.tensors()) {
      if (!info.name.ends_with(".base_layer.weight")) theirs[info.name] = info.shape;
    }
    EXPECT_EQ(ours, theirs);
  }
}

// Every expert out of the stacks and back into them: the same file, to the byte.
TEST(AdapterFile, WrittenAgainIsThePeftFile) {
  for (const fs::path& folder : testing::adapter_fixtures()) {
    if (folder.filename() == "llama_lora_head") continue;  // PEFT has a copy of the head in it
    SCOPED_TRACE(folder.filename());
    const AdapterFile file(folder, testing::base_config_of(folder));
    const TempFolder out;
    write_adapter(out.path(), file.config(), file.targets(), {}, source_of(file));
    EXPECT_EQ(testing::read_text(out / tensors_file), testing::read_text(folder / tensors_file));
    EXPECT_EQ(AdapterFile(out.path(), testing::base_config_of(folder)).config(), file.config());
  }
}

TEST(AdapterFile, CopiesOfTheBaseModelAreNoPartOfIt) {
  const fs::path folder = testing::adapter_fixture("llama_lora_head");
  const AdapterFile file(folder, testing::base_config_of(folder));
  EXPECT_EQ(file.targets().parts.back().module, "lm_head");
  EXPECT_TRUE(file.targets().saved.empty());
}

// An expert's change by its own A and B is its share of what PEFT merged into the stacked tensor.
TEST(AdapterFile, StackedExpertsComeApartAsPeftMergesThem) {
  for (const auto& [name, tensor, transposed] : {std::tuple("mixtral_experts", "mlp.experts.down_proj", false),
                                                 std::tuple("gpt_oss_experts", "mlp.experts.gate_up_proj", true)}) {
    SCOPED_TRACE(name);
    const fs::path folder = testing::adapter_fixture(name);
    const AdapterFile file(folder, testing::base_config_of(folder));
    const io::SafetensorsFile expected(folder / "expected.safetensors");
    const io::Checkpoint base(testing::base_of(folder));
    const ConstView merged = expected.tensor(std::string("merged.model.layers.1.") + tensor);
    const bool down = std::string_view(tensor).ends_with("down_proj");
    std::size_t checked = 0;
    for (const AdaptedPart& part : file.targets().parts) {
      if (part.stacked == 0 || !part.parameter.starts_with("layers.1.") || part.parameter.ends_with("down") != down)
        continue;
      const std::vector<float> a = file.a(part), b = file.b(part);
      const std::string stored = transposed
                                     ? std::string("model.layers.1.") + tensor
                                     : fmt::format("model.layers.1.block_sparse_moe.experts.{}.w2.weight", part.expert);
      const ConstView before = base.tensor(stored);
      double worst = 0;
      for (std::int64_t o = 0; o < part.out; ++o) {
        for (std::int64_t i = 0; i < part.in; ++i) {
          double change = 0;
          for (std::int64_t r = 0; r < part.rank; ++r) {
            change += static_cast<double>(b[static_cast<std::size_t>(o * part.rank + r)]) *
                      a[static_cast<std::size_t>(r * part.in + i)];
          }
          const std::int64_t in_expert = transposed ? i * part.out + o : o * part.in + i;
          const std::int64_t in_stack = part.expert * part.out * part.in + in_expert;
          const double was = before.as<float>()[transposed ? in_stack : in_expert];
          worst = std::max(worst, std::abs(was + part.scale * change - merged.as<float>()[in_stack]));
        }
      }
      EXPECT_LT(worst, 1e-6);
      ++checked;
    }
    EXPECT_EQ(checked, 5u);
  }
}

TEST(AdapterFile, OriginTravelsWithTheTensors) {
  const fs::path folder = testing::adapter_fixture("mistral");
  const AdapterFile file(folder, testing::base_config_of(folder));
  EXPECT_EQ(file.origin(), AdapterOrigin{});
  const io::Checkpoint base(testing::base_of(folder)), other(testing::base_of(testing::adapter_fixture("llama")));
  EXPECT_NO_THROW(file.check_base(other)) << "PEFT does not say what it was";
  const TempFolder out;
  const AdapterOrigin origin{.base = base_fingerprint(base), .base_format = "nf4", .init = "free"};
  write_adapter(out.path(), file.config(), file.targets(), origin, source_of(file));
  const AdapterFile again(out.path(), testing::base_config_of(folder));
  EXPECT_EQ(again.origin(), origin);
  EXPECT_NO_THROW(again.check_base(base));
  EXPECT_THAT(user_error_of([&] { again.check_base(other); }),
              AllOf(HasSubstr("was trained on another model than"),
                    HasSubstr("it names tests/golden/models/mistral_window_fp16")));
}

TEST(AdapterFile, HalfPrecisionIsReadAndWritten) {
  const fs::path folder = testing::adapter_fixture("gpt_oss_experts");
  const model::ModelConfig model = testing::base_config_of(folder);
  const AdapterFile file(folder, model);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const TempFolder out;
    write_adapter(out.path(), file.config(), file.targets(), {}, source_of(file), dtype);
    const AdapterFile again(out.path(), model);
    for (const AdaptedPart& part : file.targets().parts) {
      const std::vector<float> before = file.b(part), after = again.b(part);
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(after[i],
                  dtype == DType::bf16 ? static_cast<float>(bf16(before[i])) : static_cast<float>(f16(before[i])));
      }
    }
  }
}

// A folder with PEFT's configuration and other tensors than it means.
class AdapterFileMistakes : public ::testing::Test {
 protected:
  void write(const std::string& fixture, const std::function<void(std::vector<io::TensorSpec>&)>& change) {
    const fs::path from = testing::adapter_fixture(fixture);
    model_ = testing::base_config_of(from);
    folder_.write(config_file, testing::read_text(from / config_file));
    std::vector<io::TensorSpec> specs;
    const io::SafetensorsFile file(from / tensors_file);
    for (const io::TensorInfo& info : file.tensors()) {
      specs.push_back({info.name, DType::f32, info.shape});
    }
    change(specs);
    io::SafetensorsWriter writer(folder_ / tensors_file, specs);
    for (const io::TensorSpec& spec : specs) writer.write(spec.name, std::vector<std::byte>(spec.bytes()));
    writer.finish();
  }
  std::string error() const {
    return user_error_of([&] { AdapterFile(folder_.path(), model_); });
  }

  TempFolder folder_;
  model::ModelConfig model_;
};

TEST_F(AdapterFileMistakes, AllAreNamedAtOnce) {
  write("qwen2_regex", [](std::vector<io::TensorSpec>& specs) {
    ASSERT_EQ(specs.size(), 4u);
    specs[0].shape = {3, 12};                                                // mlp.up_proj.lora_A
    specs[1].dtype = DType::i32;                                             // its lora_B
    specs[2].name = "base_model.model.model.layers.1.q_proj.lora_A.weight";  // the block's name is missing
  });
  EXPECT_THAT(error(),
              AllOf(HasSubstr("4 problems"), HasSubstr("up_proj.lora_A.weight is [3, 12], expected [3, 56]"),
                    HasSubstr("up_proj.lora_B.weight is I32, expected F32, BF16 or F16"),
                    HasSubstr("missing: base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight [3, 56]"),
                    HasSubstr("not expected by adapter_config.json for this model: "
                              "base_model.model.model.layers.1.q_proj.lora_A.weight [3, 56]")));
}

TEST_F(AdapterFileMistakes, AnotherModelsAdapter) {
  write("qwen2_regex", [](auto&) {});
  model_ = testing::base_config_of(testing::adapter_fixture("llama"));
  EXPECT_THAT(error(), HasSubstr("q_proj.lora_A.weight is [3, 56], expected [3, 36]"));
}

TEST_F(AdapterFileMistakes, ExpertsOfOldVersionsOfPeft) {
  write("mixtral_experts", [](std::vector<io::TensorSpec>& specs) {
    for (io::TensorSpec& spec : specs) {
      if (spec.name.find("experts.lora_A") != std::string::npos) spec.shape = {15, 36};
      if (spec.name.find("experts.lora_B") != std::string::npos) spec.shape = {22, 15};
    }
  });
  EXPECT_THAT(error(),
              AllOf(HasSubstr("4 problems"),
                    HasSubstr("experts.lora_A.weight is [15, 36], expected [15, 22] (in and out are exchanged")));
}

TEST_F(AdapterFileMistakes, ATiedHeadThatIsNotTheEmbedding) {
  const fs::path from = testing::adapter_fixture("llama_tied_embeddings");
  const AdapterFile file(from, testing::base_config_of(from));
  folder_.write(config_file, testing::read_text(from / config_file));
  std::string text = testing::read_text(from / tensors_file);
  model_ = testing::base_config_of(from);
  const io::SafetensorsFile tensors(from / tensors_file);
  const io::TensorInfo* head = tensors.find("base_model.model.lm_head.weight");
  ASSERT_NE(head, nullptr);
  text[text.size() - tensors.data_bytes() + head->begin] ^= 1;
  folder_.write(tensors_file, text);
  EXPECT_THAT(error(), HasSubstr("lm_head.weight differs from base_model.model.model.embed_tokens.weight"));
}

TEST_F(AdapterFileMistakes, PickledTensors) {
  const fs::path from = testing::adapter_fixture("llama");
  model_ = testing::base_config_of(from);
  folder_.write(config_file, testing::read_text(from / config_file));
  EXPECT_THAT(error(), HasSubstr("there is no adapter_model.safetensors in it"));
  folder_.write("adapter_model.bin", "x");
  EXPECT_THAT(error(), AllOf(HasSubstr("adapter_model.bin: pickled tensors are not read"), HasSubstr("python -c")));
}

}  // namespace
}  // namespace inlay::adapter
