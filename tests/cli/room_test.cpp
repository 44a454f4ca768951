#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/paths.h"

// What a run will need of the disk, said before it begins.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
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
  EXPECT_EQ(planned(best, {"--max_steps", "10", "--eval_steps", "4"}).at("checkpoints"), 3);  // and the last step's
  const nlohmann::json output = planned(file, {"--save_steps", "1"});
  EXPECT_EQ(output.at("bytes"),
            output.at("model_bytes").get<std::uint64_t>() * 4 + output.at("state_bytes").get<std::uint64_t>() * 3);
  EXPECT_GT(output.at("free_bytes"), 0);
}

// Without the data nobody knows how long an epoch is.
TEST_F(CliRoom, WhereTheDataIsMissing) {
  const auto plan = [&](const std::string& saving) {
    const std::string file = config("llama_llama3_tied", "run", "", saving);
    return inlay({"plan", file, "--datasets", "[{path: nowhere.jsonl}]"}).out;
  };
  EXPECT_THAT(plan("save_strategy: epoch\n"), HasSubstr("at least 1 checkpoint of "));
  EXPECT_THAT(plan("save_steps: 0.1\n"), HasSubstr("at least 1 checkpoint of "));
  EXPECT_THAT(plan("save_strategy: epoch\nsave_total_limit: 2\n"), HasSubstr(": 3 checkpoints of "));
  EXPECT_THAT(plan("save_steps: 1\n"), HasSubstr(": 3 checkpoints of "));
}

// Seeking directions takes minutes.
TEST_F(CliRoom, RoomComesBeforeDirections) {
  const std::string file = config("llama_llama3_tied", "run", "osft: {unfreeze_rank_ratio: 0.5}\n");
  const auto train = [&](const std::string& free) {
    return inlay({"train", file}, {.environment = {{"INLAY_TEST_FAULT", "space:" + free}}});
  };
  const CommandResult nothing = train("1"), enough = train("1000000000");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("is needed on the disk for a checkpoint, but only 1 B is free in "));
  EXPECT_THAT(nothing.err, Not(HasSubstr("directions")));
  EXPECT_EQ(enough.code, 0) << enough.err;
  EXPECT_THAT(enough.err, HasSubstr("directions"));
}

// Disks that say that they have so many bytes free.
TEST_F(CliRoom, WhatCannotBeSavedDoesNotBegin) {
  const std::string file = config("llama_llama3_tied", "run", "");
  const nlohmann::json output = planned(file);
  const auto model = output.at("model_bytes").get<std::uint64_t>(),
             checkpoint = model + output.at("state_bytes").get<std::uint64_t>();
  const auto train = [&](std::uint64_t free, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"train", file});
    return inlay(more, {.environment = {{"INLAY_TEST_FAULT", fmt::format("space:{}", free)}}});
  };
  const CommandResult nothing = train(1);
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("is needed on the disk for a checkpoint, but only 1 B is free in "));
  EXPECT_THAT(nothing.err, Not(HasSubstr("save_only_model")));
  EXPECT_THAT(train(model).err, HasSubstr("or choose another output_dir, or save_only_model: true"));
  EXPECT_THAT(train(1, {"--save_steps", "0"}).err, HasSubstr("is needed on the disk for the result, but only "));

  const CommandResult tight = train(checkpoint);  // but not for the result, too
  ASSERT_EQ(tight.code, 0) << tight.err;
  EXPECT_THAT(tight.err, HasSubstr("the disk may become full: 1 checkpoint of "));
  EXPECT_THAT(tight.err, HasSubstr("save_total_limit limits their number"));

  // Going on. To the next checkpoint, however few steps that takes; those beyond the limit make room before it is
  // asked.
  const std::vector<std::string> on = {"--resume", "--max_steps", "4", "--save_total_limit", "1"};
  EXPECT_THAT(train(checkpoint - 1, on).err, HasSubstr("is needed on the disk for a checkpoint"));
  const CommandResult enough = train(checkpoint + model, on);
  ASSERT_EQ(enough.code, 0) << enough.err;
  EXPECT_THAT(enough.err, Not(HasSubstr("the disk may become full")));
  EXPECT_THAT(inlay({"plan", file, "--max_steps", "1000000000000", "--save_steps", "1"}).out,
              HasSubstr("is free: not enough for all"));
}

}  // namespace
}  // namespace inlay::testing
