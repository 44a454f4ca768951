#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/paths.h"

// matmul_dtype from the command line to the last step.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;

class CliFp8 : public ::testing::Test {
 protected:
  // A small Llama made by the program itself: its extents are multiples of 16.
  CliFp8() {
    EXPECT_EQ(inlay({"init", folder / "base", "--preset", "tiny", "--seed", "3"}).code, 0);
    std::string rows;
    for (int i = 0; i < 12; ++i) rows += fmt::format("{{\"text\": \"one, two, {}, four and what comes after\"}}\n", i);
    folder.write("data.jsonl", rows);
  }
  CommandResult train(const std::string& run, const std::string& more, const std::vector<std::string>& arguments = {}) {
    folder.write(
        "run.yaml",
        fmt::format("base_model: {}\noutput_dir: {}\ndatasets: [{{path: {}, type: completion}}]\n"
                    "learning_rate: 3e-3\nsequence_len: 64\nmax_steps: 6\ndevice: cpu\ndtype: fp32\n{}",
                    (folder / "base").string(), (folder / run).string(), (folder / "data.jsonl").string(), more));
    std::vector<std::string> command = {"train", folder / "run.yaml"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return inlay(command);
  }
  double loss_of(const std::string& run) {
    return nlohmann::json::parse(read_text(std::filesystem::path(folder / run) / "summary.json")).at("loss");
  }

  TempFolder folder;
};

TEST_F(CliFp8, TrainsToAboutTheSameLoss) {
  ASSERT_EQ(train("plain", "").code, 0);
  const CommandResult result = train("eight", "matmul_dtype: fp8\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("products in fp8 (block)"));
  EXPECT_NE(loss_of("eight"), loss_of("plain"));
  EXPECT_NEAR(loss_of("eight"), loss_of("plain"), 0.02 * loss_of("plain"));
}

TEST_F(CliFp8, WhatWouldDoNothingIsAnError) {
  EXPECT_THAT(train("a", "matmul_dtype: fp8\nfp8: {skip_first: 100}\n").err, HasSubstr("fp8.skip_first"));
  EXPECT_THAT(train("b", "fp8: {recipe: row}\n").err, HasSubstr("these keys want matmul_dtype: fp8"));
  EXPECT_THAT(train("c", "matmul_dtype: bf16\n").err, HasSubstr("leave matmul_dtype out, or change dtype"));
  EXPECT_THAT(train("d", "matmul_dtype: fp8\nfp8: {recipe: rows}\n").err, HasSubstr("one of auto, block, row, tensor"));
  EXPECT_EQ(train("e", "matmul_dtype: fp8\nfp8: {skip_first: 100}\n").code, 2);
}

// To go on in other arithmetic is allowed, and said.
TEST_F(CliFp8, AResumedRunSaysThatItsArithmeticChanged) {
  ASSERT_EQ(train("run", "matmul_dtype: fp8\nsave_steps: 2\n").code, 0);
  for (const char* file : {"summary.json", "model.safetensors"}) std::filesystem::remove(folder / "run" / file);
  std::filesystem::remove_all(folder / "run/checkpoint-6");
  const CommandResult result = train("run", "save_steps: 2\n", {"--resume"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out + result.err,
              HasSubstr("so far it was trained in fp32 with products in fp8 (block), from here on in fp32"));
}

// What fp8 does to a model's gradients, before a run does.
TEST_F(CliFp8, GradientsCanBeLookedAt) {
  const auto loss = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"grad", folder / "base", "--data", folder / "data.jsonl", "--device", "cpu", "--json",
                               "--quiet", "--out", folder / out});
    const CommandResult result = inlay(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("loss").get<double>();
  };
  const double plain = loss("plain.safetensors", {}), eight = loss("eight.safetensors", {"--matmul-dtype", "fp8"});
  EXPECT_NE(eight, plain);
  EXPECT_NEAR(eight, plain, 0.02 * plain);
}

}  // namespace
}  // namespace inlay::testing
