#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "core/console.h"
#include "support/command.h"
#include "support/paths.h"
#include "train/disk_need.h"

// What a run will need of the disk, said before it begins.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Bytes of the tensors in a file, or in all files of a folder.
std::uint64_t tensor_bytes(const fs::path& file) {
  const std::string text = read_text(file);
  std::uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  return text.size() - sizeof header - header;
}
std::uint64_t model_bytes(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const fs::path& file : fs::directory_iterator(folder)) {
    const std::string name = file.filename().string();
    if (name.ends_with(".safetensors") && name != "optimizer.safetensors") bytes += tensor_bytes(file);
  }
  return bytes;
}

class CliRoom : public ::testing::Test {
 protected:
  std::string config(const std::string& model, const std::string& run, const std::string& more,
                     const std::string& saving = "save_steps: 2\n") {
    const fs::path base = source_folder() / "tests/golden/models" / model;
    return folder.write(
        run + ".yaml",
        fmt::format("base_model: {}\noutput_dir: {}\ndatasets: [{{path: {}}}]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                    "max_steps: 3\ndevice: cpu\n{}{}",
                    base.string(), (folder / run).string(), (base / "data.jsonl").string(), saving, more));
  }
  nlohmann::json planned(const std::string& file, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"plan", file, "--json"});
    const CommandResult result = inlay(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("output");
  }

  TempFolder folder;
};

TEST_F(CliRoom, PlansSayWhatRunsWrite) {
  const std::string lora = "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n";
  const std::string osft = "osft: {unfreeze_rank_ratio: 0.5, cache: off, freeze: [embeddings, head], basis: ";
  struct Case {
    const char* model;
    std::string keys;
  };
  int number = 0;
  for (const Case& c : {Case{"llama_llama3_tied", "dtype: fp32\n"},
                        {"llama_llama3_tied", "dtype: bf16\n"},
                        {"qwen2_yarn_bf16", "dtype: bf16\n"},
                        {"qwen2_yarn_bf16", "dtype: fp32\nfreeze: [\"*embed_tokens*\"]\n"},
                        {"llama_linear_sharded", "optimizer_state: 8bit\n"},
                        {"llama_linear_sharded", "optimizer: muon\n"},
                        {"llama_linear_sharded", "optimizer: schedule_free_adamw\nlr_scheduler: constant\n"},
                        {"gpt_oss_balance", "dtype: bf16\n"},
                        {"llama_llama3_tied", "dtype: bf16\n" + osft + "weights}\n"},
                        {"llama_llama3_tied", "dtype: bf16\n" + osft + "activations, calibration: {samples: 8}}\n"},
                        {"llama_llama3_tied", lora},
                        {"llama_llama3_tied", lora + "dtype: bf16\nlora_modules_to_save: [embed_tokens]\n"},
                        {"llama_llama3_tied", lora + "lora_init: pissa\n"},
                        {"llama_llama3_tied", "save_only_model: true\n"}}) {
    SCOPED_TRACE(std::string(c.model) + "\n" + c.keys);
    const std::string run = fmt::format("run{}", number++), file = config(c.model, run, c.keys);
    const nlohmann::json output = planned(file);
    const CommandResult result = inlay({"train", file});
    ASSERT_EQ(result.code, 0) << result.err;
    const fs::path checkpoint = folder / run / "checkpoint-2";
    EXPECT_EQ(output.at("model_bytes"), model_bytes(folder / run));
    EXPECT_EQ(output.at("model_bytes"), model_bytes(checkpoint));
    const bool resumable = fs::exists(checkpoint / "optimizer.safetensors");
    EXPECT_EQ(output.at("state_bytes"), resumable ? tensor_bytes(checkpoint / "optimizer.safetensors") : 0);
    EXPECT_EQ(output.at("checkpoints"), 1);
  }
}

TEST_F(CliRoom, AsManyCheckpointsAsThereMayBe) {
  const std::string file = config("llama_llama3_tied", "run", "val_set_size: 2\n");
  const auto checkpoints = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--max_steps", "20"});
    return planned(file, more).at("checkpoints").get<int>();
  };
  EXPECT_EQ(checkpoints({}), 10);
  EXPECT_EQ(checkpoints({"--save_total_limit", "3"}), 4);  // the oldest goes when the new one is there
  EXPECT_EQ(checkpoints({"--save_steps", "0"}), 0);
  EXPECT_EQ(checkpoints({"--save_steps", "0.25"}), 4);
  EXPECT_EQ(checkpoints({"--eval_steps", "4", "--save_total_limit", "3", "--load_best_model_at_end", "true"}), 5);
  const std::string best = config("llama_llama3_tied", "best", "val_set_size: 2\n", "save_strategy: best\n");
  EXPECT_EQ(planned(best, {"--max_steps", "20", "--eval_steps", "4"}).at("checkpoints"), 5);
  const nlohmann::json output = planned(file, {"--save_steps", "1"});
  EXPECT_EQ(output.at("bytes"),
            output.at("model_bytes").get<std::uint64_t>() * 4 + output.at("state_bytes").get<std::uint64_t>() * 3);
  EXPECT_GT(output.at("free_bytes"), 0);
}

TEST_F(CliRoom, WhatCannotBeSavedDoesNotBegin) {
  constexpr std::uint64_t too_much = std::uint64_t{1} << 60;
  Console console(true);
  const auto message = [&](const train::DiskNeed& need) {
    return user_error_of([&] { train::check_room(need, folder / "not/yet/there", console); });
  };
  EXPECT_THAT(message({.model = too_much}), HasSubstr("is needed on the disk for the result, but only "));
  const std::string checkpoint = message({.model = 1, .state = too_much, .checkpoints = 1});
  EXPECT_THAT(checkpoint, HasSubstr("is needed on the disk for a checkpoint, but only "));
  EXPECT_THAT(checkpoint, HasSubstr("or save_only_model: true"));
  EXPECT_EQ(message({.model = 1, .state = 1, .checkpoints = too_much}), "<no error>");  // it may never get there
  EXPECT_EQ(message({.model = 1, .state = 1, .checkpoints = 3}), "<no error>");
  const std::string file = config("llama_llama3_tied", "run", "");
  EXPECT_THAT(inlay({"plan", file, "--max_steps", "1000000000000", "--save_steps", "1"}).out,
              HasSubstr("is free: not enough for all"));
  EXPECT_THAT(inlay({"plan", file}).out, HasSubstr("1 checkpoint of "));
}

}  // namespace
}  // namespace inlay::testing
