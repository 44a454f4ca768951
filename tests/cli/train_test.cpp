#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/lock.h"
#include "io/safetensors.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/paths.h"

// The program as a user meets it: files in, files out, exit codes and messages.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

const fs::path golden_models = source_folder() / "tests/golden/models";

class CliTrain : public ::testing::TestWithParam<Device> {
 protected:
  CliTrain() {
    fs::copy(golden_models / "llama_llama3_tied", folder / "base");
    config = "base_model: " + (folder / "base").string() + "\noutput_dir: " + (folder / "run").string() +
             "\ndatasets: [{path: " + (folder / "base/data.jsonl").string() +
             "}]\nlearning_rate: 1.0e-3\nsequence_len: 64\nmicro_batch_size: 2\nsample_packing: false\n"
             "gradient_accumulation_steps: 2\nmax_steps: 6\ndeterministic: true\ndevice: " +
             std::string(name_of(GetParam())) + "\n";
  }

  CommandResult train(const std::string& more = "", std::vector<std::string> arguments = {},
                      CommandLimits limits = {}) {
    folder.write("run.yaml", config + more);
    arguments.insert(arguments.begin(), {"train", folder / "run.yaml"});
    return inlay(arguments, limits);
  }

  static std::vector<nlohmann::json> metrics(const fs::path& run) {
    std::vector<nlohmann::json> records;
    std::istringstream lines(read_text(run / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
    return records;
  }

  TempFolder folder;
  std::string config;
};

// The result of a run carries its rule of attention: whoever loads it computes what was trained.
TEST_P(CliTrain, ARuleOfAttentionBelongsToTheModel) {
  const std::string data = (folder / "base/data.jsonl").string(), device(name_of(GetParam()));
  const std::string rule = "attention: {mask: \"causal and (q - k) % 3 != 2\", score: \"softcap(20)\"}\n";
  const CommandResult result = train("dtype: fp32\ntest_datasets: [{path: " + data + "}]\n" + rule);
  ASSERT_EQ(result.code, 0) << result.err;
  const double trained = nlohmann::json::parse(read_text(folder / "run/summary.json")).at("eval_loss");
  const auto loss_of = [&](const std::vector<std::string>& command) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--data", data, "--device", device, "--json", "--quiet"});
    const CommandResult evaluated = inlay(arguments);
    EXPECT_EQ(evaluated.code, 0) << evaluated.err;
    return nlohmann::json::parse(evaluated.out).at("loss").get<double>();
  };
  EXPECT_NEAR(loss_of({"eval", folder / "run"}), trained, 1e-5);
  EXPECT_NEAR(loss_of({"grad", folder / "run", "--out", folder / "grad.safetensors"}), trained, 1e-5);

  // A run that goes on from it attends the same way unless it says otherwise; and the key is what made the difference.
  auto config = nlohmann::json::parse(read_text(folder / "run/config.json"));
  EXPECT_EQ(config.at("inlay_attention").at("mask"), "causal and (q - k) % 3 != 2");
  config.erase("inlay_attention");
  folder.write("run/config.json", config.dump());
  EXPECT_GT(std::abs(loss_of({"eval", folder / "run"}) - trained), 1e-3);
}

TEST_P(CliTrain, LeavesAModelMetricsAndASummary) {
  const CommandResult result =
      train("dtype: fp32\ntest_datasets: [{path: " + (folder / "base/data.jsonl").string() + "}]\neval_steps: 3\n");
  ASSERT_EQ(result.code, 0) << result.err;
  const fs::path run = folder / "run";
  const auto records = metrics(run);
  ASSERT_EQ(records.size(), 6u + 3u);  // steps, evaluations
  for (const char* key :
       {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "device_peak_bytes", "host_peak_bytes"}) {
    EXPECT_TRUE(records[1].contains(key)) << key;
  }
  EXPECT_LT(records.back().at("eval_loss"), records[0].at("eval_loss"));
  const auto summary = nlohmann::json::parse(read_text(run / "summary.json"));
  EXPECT_EQ(summary.at("steps"), 6);
  // The plan was the truth.
  const CommandResult plan = inlay({"plan", folder / "run.yaml", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const double planned = nlohmann::json::parse(plan.out).at("device_peak_bytes"),
               measured = summary.at("device_peak_bytes");
  EXPECT_EQ(summary.at("planned_device_peak_bytes").get<double>(), planned);
  EXPECT_LE(measured, planned);
  // The result is a model like the base: the same names, shapes and dtypes, other values.
  const io::SafetensorsFile base(folder / "base/model.safetensors"), trained(run / "model.safetensors");
  ASSERT_EQ(base.names(), trained.names());
  for (const std::string& name : base.names()) EXPECT_EQ(base.find(name)->dtype, trained.find(name)->dtype);
  const CommandResult eval = inlay({"eval", run.string(), "--data", folder / "base/data.jsonl", "--json", "--device",
                                    std::string(name_of(GetParam()))});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_NEAR(nlohmann::json::parse(eval.out).at("loss").get<double>(), records.back().at("eval_loss").get<double>(),
              1e-5);
}

TEST_P(CliTrain, ResumesBitForBit) {
  const std::string osft =
      "osft: {unfreeze_rank_ratio: 0.5, cache: off, calibration: {samples: 4, length: 16}, basis: ";
  for (const std::string how : {"dtype: fp32", "dtype: bf16"})
    for (const std::string& method : {std::string(), osft + "activations}\n", osft + "weights}\n"}) {
      const std::string more = "save_steps: 2\n" + how + "\n" + method;
      ASSERT_EQ(train(more).code, 0);
      const std::string whole = read_text(folder / "run/model.safetensors");
      const auto losses = metrics(folder / "run");
      // The same run stopped after four steps: the later checkpoint and the end are gone.
      const fs::path run = folder / "run";
      for (const char* name : {"checkpoint-6", "checkpoint-4", "summary.json", "model.safetensors"})
        fs::remove_all(run / name);
      const CommandResult resumed = train(more, {"--resume"});
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      EXPECT_EQ(read_text(run / "model.safetensors"), whole) << more;
      const auto again = metrics(run);
      ASSERT_EQ(again.size(), losses.size());
      for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].at("loss"), losses[i].at("loss"));
      fs::remove_all(run);
    }
}

const std::string free_adapter =
    "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\nlora_init: free\n"
    "osft: {cache: off, calibration: {samples: 4, length: 16}}\n";

TEST_P(CliTrain, AFreeAdapterResumesBitForBitInItsOwnDirections) {
  const fs::path run = folder / "run";
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string more = "save_steps: 2\ndtype: " + dtype + "\n" + free_adapter;
    const CommandResult first = train(more);
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_LE(nlohmann::json::parse(read_text(run / "summary.json")).at("adapter").at("leak").get<double>(), 1e-5);
    const std::string whole = read_text(run / "adapter_model.safetensors");
    for (const char* name : {"checkpoint-6", "checkpoint-4", "summary.json", "adapter_model.safetensors"}) {
      fs::remove_all(run / name);
    }
    // Other text shows other directions.
    const CommandResult other = train(more, {"--resume", "--osft.calibration.temperature", "2"});
    EXPECT_EQ(other.code, 2);
    EXPECT_THAT(other.err, HasSubstr("directions found now are not those of the run"));
    const CommandResult resumed = train(more, {"--resume"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(read_text(run / "adapter_model.safetensors"), whole) << dtype;
    fs::remove_all(run);
  }
}

TEST_P(CliTrain, TheSummarySaysHowMuchWasLearnedInFrozenDirections) {
  for (const std::string basis : {"activations", "weights"}) {
    const CommandResult result = train(
        "dtype: bf16\nosft: {unfreeze_rank_ratio: 0.5, cache: off, calibration: {samples: 4, length: 16}, basis: " +
        basis + "}\n");
    ASSERT_EQ(result.code, 0) << result.err;
    const auto summary = nlohmann::json::parse(read_text(folder / "run/summary.json"));
    const double leak = summary.at("osft").at("leak");
    EXPECT_GT(leak, 0.0);  // measured, in fp32
    EXPECT_LE(leak, 1e-5);
    EXPECT_THAT(result.out + result.err, HasSubstr("lies in frozen directions"));
    fs::remove_all(folder / "run");
  }
}

TEST_P(CliTrain, ResumingWithOtherDirectionsIsRefused) {
  const std::string osft =
      "save_steps: 2\nosft: {cache: off, calibration: {samples: 4, length: 16}, unfreeze_rank_ratio: ";
  ASSERT_EQ(train(osft + "0.5}\n").code, 0);
  fs::remove_all(folder / "run/checkpoint-6");
  const CommandResult other = train(osft + "0.5, tokens: all, basis: weights}\n", {"--resume"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("directions found now are not those of the run"));
  const CommandResult without = train("save_steps: 2\n", {"--resume"});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("the run uses osft, but now it is off; resume with the run's own osft keys"));
  fs::remove_all(folder / "run");
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  fs::remove_all(folder / "run/checkpoint-6");
  const CommandResult with = train(osft + "0.5}\n", {"--resume"});
  EXPECT_EQ(with.code, 2);
  EXPECT_THAT(with.err, HasSubstr("the run does not use osft, but now it is on; resume without the osft keys"));
}

TEST_P(CliTrain, AFolderWithARunIsNotTouched) {
  ASSERT_EQ(train().code, 0);
  const std::string before = read_text(folder / "run/model.safetensors");
  const CommandResult again = train();
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("already holds a complete run"));
  EXPECT_EQ(read_text(folder / "run/model.safetensors"), before);
}

TEST_P(CliTrain, ResumingACompleteRunChangesNothing) {
  ASSERT_EQ(train("save_steps: 6\n").code, 0);
  const std::string summary = read_text(folder / "run/summary.json"), metrics = read_text(folder / "run/metrics.jsonl");
  const CommandResult again = train("save_steps: 6\n", {"--resume"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("the run is complete after 6 steps"));
  EXPECT_EQ(read_text(folder / "run/summary.json"), summary);
  EXPECT_EQ(read_text(folder / "run/metrics.jsonl"), metrics);
}

TEST_P(CliTrain, ResumeWithoutACheckpointOrWithOtherDataIsAnError) {
  EXPECT_THAT(train("", {"--resume"}).err, HasSubstr("finds no checkpoint"));
  fs::remove_all(folder / "run");
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  folder.write("base/data.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  const CommandResult other = train("save_steps: 2\n", {"--resume"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("the datasets are not those of the run"));
}

TEST_P(CliTrain, ANonFiniteLossStopsAndKeepsTheLastCheckpoint) {
  config.replace(config.find("1.0e-3"), 6, "1.0e36");
  const CommandResult blown = train("dtype: fp32\nsave_steps: 1\nmax_grad_norm: 0\n");
  EXPECT_EQ(blown.code, 2) << blown.err;
  EXPECT_THAT(blown.err, HasSubstr("stopped"));
  // What step 1 left is finite and already gives this: no checkpoint is called good.
  EXPECT_THAT(blown.err, HasSubstr("checkpoint-1, already give this"));
  EXPECT_THAT(blown.err, Not(HasSubstr("-nan")));
  EXPECT_FALSE(fs::exists(folder / "run/summary.json"));
}

// The loss of a step is that before its update: what the last update made is only seen in the weights.
TEST_P(CliTrain, WeightsThatAreNotFiniteAreNeverSaved) {
  config.replace(config.find("1.0e-3"), 6, "1.0e39");
  config.replace(config.find("max_steps: 6"), 12, "max_steps: 1");
  for (const char* more : {"", "save_steps: 1\n"}) {
    const CommandResult blown = train(std::string(more) + "dtype: fp32\nmax_grad_norm: 0\n");
    EXPECT_EQ(blown.code, 2) << blown.err;
    EXPECT_THAT(blown.err, HasSubstr("not finite"));
    EXPECT_THAT(blown.err, HasSubstr("No checkpoint has been written yet"));
    EXPECT_FALSE(fs::exists(folder / "run/model.safetensors") || fs::exists(folder / "run/checkpoint-1"));
  }
}

TEST_P(CliTrain, ARunThatEndedBeforeItsFirstCheckpointMayStartAgain) {
  fs::create_directories(folder / "run");
  folder.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 5.0}\n");
  const CommandResult again = train();
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(metrics(folder / "run").size(), 6u);
  EXPECT_THAT(read_text(folder / "run/metrics-1.jsonl"), HasSubstr("5.0"));
}

TEST_P(CliTrain, TwoRunsDoNotShareAFolder) {
  fs::create_directories(folder / "run");
  const io::FolderLock other(folder / "run");
  const CommandResult result = train();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("run: another process is using this folder"));
}

TEST_P(CliTrain, ResumingWithOtherBatchesOrLessThatTrainsIsRefused) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  fs::remove_all(folder / "run/checkpoint-6");
  fs::remove(folder / "run/summary.json");
  for (const auto& [key, value] :
       {std::pair{"seed", "7"}, {"gradient_accumulation_steps", "1"}, {"sequence_len", "32"}}) {
    const CommandResult resumed = train("save_steps: 2\n", {"--resume", fmt::format("--{}={}", key, value)});
    EXPECT_EQ(resumed.code, 2) << key;
    EXPECT_THAT(resumed.err, HasSubstr(fmt::format("the run's batches were made with {} ", key)));
    EXPECT_THAT(resumed.err, HasSubstr(fmt::format(", but now it is {} {}: documents would be", key, value)));
  }
  fs::copy(folder / "run/checkpoint-2", folder / "other");
  const CommandResult based = train("save_steps: 2\n", {"--resume", "--base_model", folder / "other"});
  EXPECT_EQ(based.code, 2);
  EXPECT_THAT(based.err, HasSubstr("is not the run's base model"));
  const CommandResult frozen = train("save_steps: 2\nfreeze: ['model.layers.*']\n", {"--resume"});
  EXPECT_EQ(frozen.code, 2);
  EXPECT_THAT(frozen.err, HasSubstr("which does not train in this run"));
  const CommandResult all = train("save_steps: 2\nfreeze: ['*']\n", {"--resume"});
  EXPECT_EQ(all.code, 2);
  EXPECT_THAT(all.err, HasSubstr("no part of the model is left to train"));
}

TEST_P(CliTrain, AFullDiskIsAnErrorThatNamesTheFileAndKeepsEarlierCheckpoints) {
  ASSERT_EQ(train("save_steps: 3\n").code, 0);
  const std::string before = read_text(folder / "run/checkpoint-3/optimizer.safetensors");
  fs::remove_all(folder / "run/checkpoint-6");
  fs::remove(folder / "run/summary.json");
  const CommandResult full = train("save_steps: 3\n", {"--resume"}, {.file_bytes = 20000});
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_THAT(full.err, HasSubstr("safetensors"));
  EXPECT_EQ(read_text(folder / "run/checkpoint-3/optimizer.safetensors"), before);
  EXPECT_FALSE(fs::exists(folder / "run/checkpoint-6"));
}

TEST_P(CliTrain, CtrlCWritesACheckpointAndSaysHowToGoOn) {
  config.replace(config.find("max_steps: 6"), 12, "max_steps: 1000000");
  const CommandResult interrupted = train("", {}, {.interrupt_after_ms = GetParam() == Device::cuda ? 6000 : 1500});
  EXPECT_EQ(interrupted.code, 130) << interrupted.err;
  EXPECT_THAT(interrupted.err, HasSubstr("--resume"));
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(folder / "run"))
    checkpoints += entry.path().filename().string().starts_with("checkpoint-");
  EXPECT_EQ(checkpoints, 1);
}

INSTANTIATE_TEST_SUITE_P(, CliTrain, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
