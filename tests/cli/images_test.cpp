#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "model/families/family.h"
#include "support/command.h"
#include "support/fixtures.h"
#include "support/paths.h"

// Models of images and text, trained as text: what is saved is again the whole model.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CliImages : public ::testing::TestWithParam<const char*> {
 protected:
  CliImages() {
    fs::copy(model_fixture(GetParam()), folder / "base");
    folder.write("base/preprocessor_config.json", R"({"image_size": 16})");
  }

  CommandResult train(const std::string& more) {
    folder.write("run.yaml", "base_model: " + (folder / "base").string() +
                                 "\noutput_dir: " + (folder / "run").string() +
                                 "\ndatasets: [{path: " + (folder / "base/data.jsonl").string() +
                                 "}]\nlearning_rate: 3.0e-3\nsequence_len: 64\nmax_steps: 2\ndevice: cpu\n" + more);
    return inlay({"train", folder / "run.yaml"});
  }

  static bool of_text(const std::string& name) { return name.find("language_model") != std::string::npos; }

  TempFolder folder;
};

TEST_P(CliImages, WhatIsNotTextIsKeptByteForByte) {
  const CommandResult trained = train("");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const io::Checkpoint base(folder / "base"), saved(folder / "run");
  EXPECT_EQ(saved.names(), base.names());
  std::size_t kept = 0;
  for (const std::string& name : base.names()) {
    const ConstView before = base.tensor(name), after = saved.tensor(name);
    ASSERT_EQ(after.bytes(), before.bytes()) << name;
    ASSERT_EQ(after.dtype(), before.dtype()) << name;
    const bool same = std::memcmp(after.data(), before.data(), before.bytes()) == 0;
    if (of_text(name) || name == "lm_head.weight") {
      EXPECT_FALSE(same && name.ends_with("proj.weight")) << name;
    } else {
      EXPECT_TRUE(same) << name;
      ++kept;
    }
  }
  EXPECT_GT(kept, 10u);
  for (const char* file : {"config.json", "preprocessor_config.json"}) {
    EXPECT_EQ(read_text(folder / "run" / file), read_text(folder / "base" / file));
  }
}

// PEFT calls modules as transformers has them, whatever the files call their tensors.
TEST_P(CliImages, AdaptersHaveTheNamesOfModules) {
  const CommandResult trained = train("adapter: lora\nlora_r: 2\nlora_alpha: 4\nlora_target_modules: [q_proj]\n");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const io::SafetensorsFile adapter(folder / "run/adapter_model.safetensors");
  EXPECT_NE(adapter.find("base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"), nullptr);
  const CommandResult merged = inlay({"merge", folder / "base", folder / "run", folder / "whole"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_EQ(io::Checkpoint(folder / "whole").names(), io::Checkpoint(folder / "base").names());
}

TEST_P(CliImages, AnotherTextModelInsideIsRefused) {
  nlohmann::json config = nlohmann::json::parse(read_text(folder / "base/config.json"));
  config["text_config"]["model_type"] = "stranger";
  std::ofstream(folder / "base/config.json") << config;
  const CommandResult info = inlay({"info", folder / "base"});
  EXPECT_EQ(info.code, 2);
  EXPECT_THAT(info.err, HasSubstr(R"(text_config.model_type: "stranger" is not supported inside)"));
}

INSTANTIATE_TEST_SUITE_P(, CliImages, ::testing::Values("gemma3_images", "mistral3_images"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace inlay::testing
