#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/presets.h"
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
  EXPECT_THAT(train("b", "fp8: {recipe: row}\n").err, HasSubstr("these keys need matmul_dtype: fp8"));
  EXPECT_THAT(train("c", "matmul_dtype: bf16\n").err, HasSubstr("leave matmul_dtype out, or change dtype"));
  EXPECT_THAT(train("d", "matmul_dtype: fp8\nfp8: {recipe: rows}\n").err, HasSubstr("one of auto, block, row, tensor"));
  EXPECT_EQ(train("e", "matmul_dtype: fp8\nfp8: {skip_first: 100}\n").code, 2);
  EXPECT_THAT(train("h", "matmul_dtype: fp8\nfp8: {sums: fast}\n").err,
              HasSubstr("fp8.sums: fast is for the recipes row and tensor"));
  EXPECT_THAT(train("f", "matmul_dtype: fp8\nfp8: {layers: [1, 4]}\n").err,
              HasSubstr("fp8.layers: '4' names no matrix of a layer; expected a layer's number, 0 to 3"));
  EXPECT_THAT(train("g", "fp8: {layers: [1]}\n").err, HasSubstr("these keys need matmul_dtype: fp8"));
  EXPECT_THAT(train("i", "fp8: {head: true}\n").err, HasSubstr("these keys need matmul_dtype: fp8"));
}

// Experts of a layer are multiplied by together, so that some of them cannot be in fp8 alone.
TEST(CliFp8Experts, AreNamedTogether) {
  TempFolder folder;
  const auto fixture = source_folder() / "tests/golden/models/mixtral_balance";
  nlohmann::json config = nlohmann::json::parse(read_text(fixture / "config.json"));
  config["hidden_size"] = 48;
  config["intermediate_size"] = 32;
  std::filesystem::create_directory(folder / "base");
  folder.write("base/config.json", config.dump());
  model::write_random_weights(model::load_config(folder / "base"), 5, folder / "base");
  int runs = 0;
  const auto train = [&](const std::string& layers) {
    folder.write("run.yaml",
                 fmt::format("base_model: {}\noutput_dir: {}\ndatasets: [{{path: {}}}]\nlearning_rate: 3e-3\n"
                             "sequence_len: 64\nmax_steps: 2\ndevice: cpu\ndtype: fp32\nmatmul_dtype: fp8\n"
                             "fp8: {{layers: [{}]}}\n",
                             (folder / "base").string(), (folder / fmt::format("run{}", ++runs)).string(),
                             (fixture / "data.jsonl").string(), layers));
    return inlay({"train", folder / "run.yaml"});
  };
  const CommandResult some = train("\"*.layers.1.*.experts.2.*\"");
  EXPECT_EQ(some.code, 2);
  EXPECT_THAT(some.err, HasSubstr("fp8.layers: of the experts of layer 1, '"));
  EXPECT_THAT(some.err, HasSubstr(".experts.2."));
  for (const char* layers : {"1", "\"*.experts.*\"", "\"*.layers.0.*.experts.*\""}) {
    const CommandResult result = train(layers);
    EXPECT_EQ(result.code, 0) << layers << result.err;
  }
}

// Directions of the weights, and processes, whose scales span the tokens of their own micro-batches.
TEST_F(CliFp8, OsftByWeightsAndProcessesComeToAboutTheSameLoss) {
  const std::string osft = "osft: {unfreeze_rank_ratio: 0.5, basis: weights, cache: off}\n";
  ASSERT_EQ(train("plain", osft).code, 0);
  const CommandResult eight = train("eight", osft + "matmul_dtype: fp8\n");
  ASSERT_EQ(eight.code, 0) << eight.err;
  EXPECT_NE(loss_of("eight"), loss_of("plain"));
  EXPECT_NEAR(loss_of("eight"), loss_of("plain"), 0.02 * loss_of("plain"));
  const auto summary = nlohmann::json::parse(read_text(std::filesystem::path(folder / "eight") / "summary.json"));
  EXPECT_LE(summary.at("osft").at("leak").get<double>(), 1e-5);
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const std::string two = "micro_batch_size: 1\nmatmul_dtype: fp8\ngradient_accumulation_steps: ";
  ASSERT_EQ(train("alone", two + "2\n").code, 0);
  const CommandResult ranks =
      train("ranks", two + "1\nactivation_policy: offload\nparallel: {zero: 3}\n", {"--processes", "2"});
  ASSERT_EQ(ranks.code, 0) << ranks.err;
  EXPECT_NEAR(loss_of("ranks"), loss_of("alone"), 0.01 * loss_of("alone"));
}

TEST(CliBench, OptionsThatWouldBeIgnoredAreRefused) {
  const std::vector<std::string> step = {"bench",   "train-step", "--device", "cpu",
                                         "--dtype", "fp32",       "--config", "llama-8b"};
  const auto refused = [](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    const CommandResult result = inlay(command);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refused({"bench", "quantise-fp8", "--device", "cpu", "--matmul-dtype", "auto"}, {}),
              HasSubstr("leave --matmul-dtype auto out"));
  EXPECT_THAT(refused(step, {"--fp8-recipe", "row"}), HasSubstr("--fp8-recipe needs --matmul-dtype fp8"));
  EXPECT_THAT(refused(step, {"--fp8-gradients", "e4m3"}), HasSubstr("--fp8-gradients needs --matmul-dtype fp8"));
  for (const std::string option : {"--zero", "--bandwidth", "--latency"}) {
    EXPECT_THAT(refused(step, {option, "1"}), HasSubstr(option + " is about one of several processes"));
  }
  EXPECT_THAT(refused(step, {"--teacher", "llama-8b", "--objective", "kl"}),
              HasSubstr("--teacher is for --objective kd-"));
}

// To go on in other arithmetic is allowed, and said.
TEST_F(CliFp8, AResumedRunSaysThatItsArithmeticChanged) {
  ASSERT_EQ(train("run", "matmul_dtype: fp8\nsave_steps: 2\n").code, 0);
  for (const char* file : {"summary.json", "model.safetensors"}) std::filesystem::remove(folder / "run" / file);
  std::filesystem::remove_all(folder / "run/checkpoint-6");
  const CommandResult result = train("run", "save_steps: 2\n", {"--resume"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out + result.err,
              HasSubstr("trained in fp32 with products in fp8 (block) so far, from here on in fp32"));
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
