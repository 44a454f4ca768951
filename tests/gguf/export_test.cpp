#include "gguf/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "gguf/tensors.h"
#include "io/file.h"
#include "support/command.h"
#include "support/fixtures.h"

namespace inlay::gguf {
namespace {

using namespace inlay::testing;  // NOLINT
using ::testing::HasSubstr;

// The format once more, as its readers take it: numbers as text, arrays by their elements.
struct File {
  std::map<std::string, std::vector<std::string>> metadata;
  struct Tensor {
    std::vector<std::uint64_t> extents;
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };
  std::map<std::string, Tensor> tensors;
  std::string bytes;
  std::size_t data = 0;

  explicit File(const std::filesystem::path& path) : bytes(read_text(path)) {
    EXPECT_EQ(bytes.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(number<std::uint32_t>(), 3u);
    const auto tensor_count = number<std::uint64_t>(), entry_count = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < entry_count; ++i) {
      const std::string key = text();
      metadata[key] = value(number<std::uint32_t>());
    }
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
      Tensor& tensor = tensors[text()];
      tensor.extents.resize(number<std::uint32_t>());
      for (std::uint64_t& extent : tensor.extents) extent = number<std::uint64_t>();
      tensor.type = number<std::uint32_t>();
      tensor.offset = number<std::uint64_t>();
      EXPECT_EQ(tensor.offset % 32, 0u);
    }
    data = (at_ + 31) / 32 * 32;
  }

  const std::string& one(const std::string& key) const {
    static const std::string missing = "<missing>";
    const auto found = metadata.find(key);
    return found == metadata.end() || found->second.size() != 1 ? missing : found->second[0];
  }
  std::vector<float> floats(const std::string& name) const {
    const Tensor& tensor = tensors.at(name);
    EXPECT_EQ(tensor.type, 0u) << name;
    std::uint64_t count = 1;
    for (const std::uint64_t extent : tensor.extents) count *= extent;
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes.data() + data + tensor.offset, count * sizeof(float));
    return values;
  }

 private:
  template <class Number>
  Number number() {
    Number result{};
    std::memcpy(&result, bytes.data() + at_, sizeof result);
    at_ += sizeof result;
    return result;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    at_ += size;
    return bytes.substr(at_ - size, size);
  }
  std::vector<std::string> value(std::uint32_t kind) {
    switch (kind) {
      case 4: return {std::to_string(number<std::uint32_t>())};
      case 5: return {std::to_string(number<std::int32_t>())};
      case 6: return {fmt::format("{}", number<float>())};
      case 7: return {number<std::uint8_t>() != 0 ? "true" : "false"};
      case 8: return {text()};
      case 9: {
        const auto of = number<std::uint32_t>();
        std::vector<std::string> all;
        for (auto left = number<std::uint64_t>(); left > 0; --left) all.push_back(value(of)[0]);
        return all;
      }
      default: ADD_FAILURE() << "a value of type " << kind; return {};
    }
  }

  std::size_t at_ = 0;
};

std::vector<double> checkpoint_numbers(const io::Checkpoint& checkpoint, const std::string& name) {
  const ConstView view = checkpoint.tensor(name);
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.size(); ++i) {
    switch (view.dtype()) {
      case DType::bf16: values.push_back(static_cast<float>(view.as<bf16>()[i])); break;
      case DType::f16: values.push_back(static_cast<float>(view.as<f16>()[i])); break;
      default: values.push_back(view.as<float>()[i]);
    }
  }
  return values;
}

// Every number of a checkpoint is in the file once, whatever its order; those of norms by 1 + weight as such.
TEST(GgufExport, EveryTensorOfACheckpointIsTakenOnce) {
  std::size_t exported = 0;
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    SCOPED_TRACE(folder.filename().string());
    const io::Checkpoint checkpoint(folder);
    Architecture architecture;
    try {
      architecture = architecture_of(fixture.config);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("llama.cpp cannot run this model"));
      continue;
    }
    ++exported;
    std::set<std::string> used, names;
    std::vector<double> found, expected;
    for (const TensorPlan& plan : plan_tensors(fixture.config, architecture, checkpoint, NumberType::f32)) {
      EXPECT_TRUE(names.insert(plan.entry.name).second) << plan.entry.name;
      if (plan.sources.empty()) continue;  // of the rotation
      used.insert(plan.sources.begin(), plan.sources.end());
      const std::int64_t columns = plan.entry.columns(), rows = plan.entry.count() / columns;
      std::vector<float> values(static_cast<std::size_t>(rows * columns));
      ASSERT_TRUE(plan.rows);
      plan.rows(0, rows, values.data());
      const bool norm = plan.entry.name.find("norm") != std::string::npos;
      for (const float value : values) found.push_back(norm ? value - fixture.config.norm_offset : value);
    }
    for (const std::string& name : checkpoint.names()) {
      if (fixture.config.tied_embeddings && name == fixture.config.names.head) continue;
      if (name.find("vision_tower.") != std::string::npos || name.find("multi_modal_projector.") != std::string::npos)
        continue;  // of images, which stay behind
      EXPECT_TRUE(used.contains(name)) << name;
      for (const double value : checkpoint_numbers(checkpoint, name)) expected.push_back(value);
    }
    std::sort(found.begin(), found.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-6);
  }
  EXPECT_GE(exported, 8u);
}

TEST(GgufExport, RefusesWhatLlamaCppDoesOtherwise) {
  const auto refused = [](const std::string& fixture, const std::string& words) {
    const model::ModelConfig config = model::load_config(model_fixture(fixture));
    EXPECT_THAT(user_error_of([&] { architecture_of(config); }), HasSubstr(words)) << fixture;
  };
  refused("smollm3_no_rope", "layer 1 does not rotate, but there all except every fourth layer of this family do");
  refused("qwen3_moe_mixed", "some layers have experts, and some have none");
  refused("olmo2_norms_behind", "has no such biases there");
  refused("gemma2_softcaps", "query_pre_attn_scalar is 10");
  model::ModelConfig ruled = model::load_config(model_fixture("llama_llama3_tied"));
  ruled.attention.mask = "causal or prefix";
  EXPECT_THAT(user_error_of([&] { architecture_of(ruled); }), HasSubstr("attention.mask"));
}

TEST(GgufExport, WindowsThatLlamaCppLeavesOutAreSaid) {
  const Architecture found = architecture_of(model::load_config(model_fixture("mistral_window_fp16")));
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_THAT(found.notes[0], HasSubstr("more than 6 tokens"));
}

class CliExport : public ::testing::Test {
 protected:
  CliExport() {
    const CommandResult made = inlay({"init", "--preset", "tiny", "--seed", "3", folder_ / "m"});
    EXPECT_EQ(made.code, 0) << made.err;
  }
  TempFolder folder_;
};

TEST_F(CliExport, WritesAModelWithItsTokenizer) {
  const CommandResult result = inlay({"export", "gguf", folder_ / "m", folder_ / "m.gguf", "--type", "f32"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("exported: llama in f32"));
  const File file(folder_ / "m.gguf");
  const model::ModelConfig config = model::load_config(folder_ / "m");
  EXPECT_EQ(file.one("general.architecture"), "llama");
  EXPECT_EQ(file.one("general.name"), "m");
  EXPECT_EQ(file.one("general.file_type"), "0");
  EXPECT_EQ(file.one("llama.block_count"), std::to_string(config.layer_count()));
  EXPECT_EQ(file.one("llama.attention.head_count_kv"), std::to_string(config.kv_heads));
  EXPECT_EQ(file.one("llama.rope.freq_base"), "10000");
  EXPECT_EQ(file.one("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.tokens").size(), static_cast<std::size_t>(config.vocab));
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.token_type").size(), static_cast<std::size_t>(config.vocab));
  EXPECT_EQ(file.tensors.at("token_embd.weight").extents,
            (std::vector<std::uint64_t>{static_cast<std::uint64_t>(config.hidden),
                                        static_cast<std::uint64_t>(config.vocab)}));
  // A head's halves become neighbours in queries and keys, and nothing else moves.
  const io::Checkpoint checkpoint(folder_ / "m");
  const std::int64_t width = config.head_dim, hidden = config.hidden;
  const auto before = checkpoint_numbers(checkpoint, "model.layers.0.self_attn.q_proj.weight");
  const auto after = file.floats("blk.0.attn_q.weight");
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, width + 3, 2 * width - 1}) {
    const std::int64_t head = row / width, i = row % width, from = head * width + (i % 2) * (width / 2) + i / 2;
    for (std::int64_t column = 0; column < hidden; ++column) {
      ASSERT_EQ(after[static_cast<std::size_t>(row * hidden + column)],
                before[static_cast<std::size_t>(from * hidden + column)]);
    }
  }
  const auto values = checkpoint_numbers(checkpoint, "model.layers.0.self_attn.v_proj.weight");
  const auto written = file.floats("blk.0.attn_v.weight");
  EXPECT_TRUE(std::equal(values.begin(), values.end(), written.begin(), written.end()));
}

TEST_F(CliExport, TypesAndMistakes) {
  for (const auto& [type, number] :
       {std::pair("f16", "1"), std::pair("bf16", "32"), std::pair("q8_0", "7"), std::pair("mxfp4", "38")}) {
    const CommandResult result =
        inlay({"export", "gguf", folder_ / "m", folder_ / "m.gguf", "--type", type, "--quiet"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(File(folder_ / "m.gguf").one("general.file_type"), number);
    std::filesystem::remove(folder_ / "m.gguf");
  }
  EXPECT_EQ(inlay({"export", "gguf", folder_ / "m", folder_ / "m.gguf", "--type", "q3"}).code, 2);
  EXPECT_EQ(inlay({"export", "gguf", folder_ / "nowhere", folder_ / "m.gguf"}).code, 2);
  EXPECT_THAT(inlay({"export", "gguf", folder_ / "m", folder_ / "m"}).err, HasSubstr("is a folder"));
  EXPECT_EQ(folder_.entry_count(), 1u) << "the model alone";
}

TEST_F(CliExport, AFileThatIsThereStays) {
  folder_.write("m.gguf", "mine");
  const CommandResult result = inlay({"export", "gguf", folder_ / "m", folder_ / "m.gguf"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("m.gguf: already exists; give a new name, or remove it first"));
  EXPECT_EQ(io::read_file(folder_ / "m.gguf", 100), "mine");
}

}  // namespace
}  // namespace inlay::gguf
