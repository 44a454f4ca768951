#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "io/file.h"
#include "support/command.h"
#include "support/paths.h"

// What stands on disk when something went wrong: damage is found, named and survived.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

const fs::path base_model = source_folder() / "tests/golden/models/llama_llama3_tied";
const std::string osft_until_cache = "osft: {unfreeze_rank_ratio: 0.5, calibration: {samples: 4, length: 16}, cache: ";

class CliDisk : public ::testing::Test {
 protected:
  CliDisk() {
    fs::copy(base_model, folder / "base");
    data = folder / "base/data.jsonl";
  }

  std::string config() const {
    return "base_model: " + (folder / "base").string() + "\noutput_dir: " + run.string() +
           "\ndatasets: [{path: " + data.string() +
           "}]\nlearning_rate: 1.0e-3\nsequence_len: 64\nmicro_batch_size: 2\ndtype: fp32\n" +
           "sample_packing: false\nmax_steps: 4\ndevice: cpu\n";
  }
  CommandResult train(const std::string& more = "", std::vector<std::string> arguments = {},
                      const CommandLimits& limits = {}) {
    folder.write("run.yaml", config() + more);
    arguments.insert(arguments.begin(), {"train", folder / "run.yaml"});
    return inlay(arguments, limits);
  }
  static void flip(const fs::path& file, std::size_t byte) {
    std::string text = read_text(file);
    text.at(byte % text.size()) ^= 1;
    std::ofstream(file, std::ios::binary) << text;
  }
  static std::vector<std::string> names(const fs::path& of) {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(of)) result.push_back(entry.path().filename());
    return result;
  }

  TempFolder folder;
  fs::path data, run = folder / "run";
};

TEST_F(CliDisk, ADamagedFileOfACheckpointIsNamedAndAnOlderOneOffered) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  const fs::path newest = run / "checkpoint-4";
  for (const std::string name : {"optimizer.safetensors", "model.safetensors", "trainer_state.json", "config.json",
                                 "generation_config.json", "checkpoint.json"}) {
    const std::string whole = read_text(newest / name);
    for (const std::size_t at : {std::size_t{3}, whole.size() / 2, whole.size() - 3}) {
      flip(newest / name, at);
      const CommandResult resumed = train("save_steps: 2\n", {"--resume"});
      EXPECT_EQ(resumed.code, 2) << name << " " << at;
      EXPECT_THAT(resumed.err, HasSubstr((newest / name).string()));
      EXPECT_THAT(resumed.err, HasSubstr((run / "checkpoint-2").string() + " is intact"));
      std::ofstream(newest / name, std::ios::binary) << whole;
    }
    fs::resize_file(newest / name, whole.size() - 1);
    EXPECT_EQ(train("save_steps: 2\n", {"--resume"}).code, 2) << name;
    std::ofstream(newest / name, std::ios::binary) << whole;
  }
  auto state = nlohmann::json::parse(read_text(newest / "trainer_state.json"));
  state["step"] = 3;
  folder.write("run/checkpoint-4/trainer_state.json", state.dump(2) + "\n");
  EXPECT_THAT(train("", {"--resume"}).err, HasSubstr("trainer_state.json: is damaged"));
  flip(run / "checkpoint-2/optimizer.safetensors", 1000);
  EXPECT_THAT(train("", {"--resume"}).err, HasSubstr("there is no intact checkpoint before it"));
}

TEST_F(CliDisk, ACheckpointOfAnEarlierVersionIsTakenWithANote) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  const std::string whole = read_text(run / "model.safetensors");
  for (const char* name : {"checkpoint-4", "summary.json", "model.safetensors", "checkpoint-2/checkpoint.json"}) {
    fs::remove_all(run / name);
  }
  EXPECT_THAT(train("", {"--resume"}).err, HasSubstr("checkpoint.json: is missing"));
  auto state = nlohmann::json::parse(read_text(run / "checkpoint-2/trainer_state.json"));
  state.erase("version");
  folder.write("run/checkpoint-2/trainer_state.json", state.dump());
  const CommandResult resumed = train("", {"--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("cannot be verified"));
  EXPECT_EQ(read_text(run / "model.safetensors"), whole);
}

// As earlier versions left it when they died behind the model and before the summary.
TEST_F(CliDisk, AResultWithoutASummaryIsUnfinished) {
  ASSERT_EQ(train().code, 0);
  const std::string whole = read_text(run / "model.safetensors");
  fs::remove(run / "summary.json");
  const CommandResult again = train();
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_text(run / "model.safetensors"), whole);
  EXPECT_EQ(read_text(run / "unfinished-1/model.safetensors"), whole);
  EXPECT_THAT(again.err, HasSubstr("unfinished-1"));
}

TEST_F(CliDisk, SomebodysModelIsNotTouched) {
  fs::copy(folder / "base", run);
  const CommandResult result = train();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("already holds a model"));
  run = folder / "base";
  EXPECT_THAT(train().err, HasSubstr("is the base model's folder"));
}

TEST_F(CliDisk, WhatKilledRunsLeftIsRemovedByTheNext) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  const std::string whole = read_text(run / "model.safetensors");
  fs::remove(run / "summary.json");
  fs::rename(run / "checkpoint-4", run / ".checkpoint-4.before");  // killed before its successor was there
  for (const char* name : {".checkpoint-6.partial", ".checkpoint-1.removed", ".result"}) {
    fs::create_directory(run / name);
    folder.write(std::string("run/") + name + "/half", "half");
  }
  folder.write("run/.model.safetensors.tmp-1-0", "half");
  folder.write("run/.mine", "whole");
  const CommandResult resumed = train("save_steps: 2\n", {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming after step 4"));
  EXPECT_EQ(read_text(run / "model.safetensors"), whole);
  EXPECT_THAT(names(run),
              ::testing::UnorderedElementsAre(".mine", "checkpoint-2", "checkpoint-4", "config.json", "config.yaml",
                                              "expected.json", "generation_config.json", "metrics.jsonl",
                                              "model.safetensors", "summary.json", "README.md"));
}

// Power may fail between any two operations: what a name stands for is on disk before the name is.
TEST_F(CliDisk, WhatLaterThingsRelyOnIsSyncedFirst) {
  run = folder / "new/deeper/run";
  for (const std::string method : {"", "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n"}) {
    SCOPED_TRACE(method);
    const fs::path file = folder / "operations";
    const CommandResult result = train("save_steps: 2\nsave_total_limit: 1\ndataset_prepared_path: off\n" + method, {},
                                       {.environment = {{"INLAY_TEST_FAULT", "log:" + file.string()}}});
    ASSERT_EQ(result.code, 0) << result.err;
    std::vector<std::string> operations;
    std::istringstream lines(read_text(file));
    for (std::string line; std::getline(lines, line);) operations.push_back(line);
    // Where the n-th such operation after a place is.
    const auto find = [&](const std::string& what, const fs::path& path, std::size_t from = 0, int n = 1) {
      for (std::size_t i = from; i < operations.size(); ++i) {
        if (operations[i] == what + " " + path.string() && --n == 0) return i;
      }
      ADD_FAILURE() << what << " " << path << " is not there";
      return operations.size();
    };
    // Folders are in their parents before anything is in them.
    for (const fs::path& made : {folder / "new", folder / "new/deeper", run}) {
      const std::size_t at = find("make_folder", made);
      EXPECT_EQ(operations.at(at + 1), "sync " + made.parent_path().string());
    }
    const fs::path metrics = run / "metrics.jsonl";
    const auto write_of = [&](int step) { return find("write", metrics, 0, 1 + step); };  // the first makes the file
    for (const int step : {2, 4}) {
      const std::string name = "checkpoint-" + std::to_string(step);
      const std::size_t known = write_of(step), named = find("rename", run / name);
      EXPECT_LT(find("sync", metrics, known), named) << "a checkpoint of steps that the metrics have lost";
      // All of its files, and their names, and then its own.
      const fs::path partial = run / ("." + name + ".partial");
      int files = 0;
      for (std::size_t i = 0; i < named; ++i) {
        const std::string open = "open " + partial.string() + "/";
        if (!operations[i].starts_with(open)) continue;
        EXPECT_LT(find("sync", operations[i].substr(5), i), named) << operations[i];
        EXPECT_LT(find("sync", partial, i), named) << operations[i];
        ++files;
      }
      EXPECT_GT(files, 3);
      const std::size_t there = find("sync", run, named);
      if (step == 4) {
        EXPECT_LT(there, find("remove", run / ".checkpoint-2.removed")) << "neither may be left";
      }
    }
    // The summary says that the result is whole.
    const fs::path weights = run / (method.empty() ? "model.safetensors" : "adapter_model.safetensors");
    const std::size_t weights_named = find("rename", weights), summary = find("rename", run / "summary.json");
    EXPECT_LT(find("sync", run, weights_named), summary);
    EXPECT_LT(find("sync", run / ".result" / weights.filename()), weights_named);
    EXPECT_LT(find("sync", metrics, write_of(4)), summary);
    EXPECT_EQ(operations.at(summary + 1), "sync " + run.string());
    fs::remove_all(folder / "new");
    fs::remove(file);
  }
}

TEST_F(CliDisk, TheOutputFolderIsCheckedBeforeDataIsRead) {
  ASSERT_EQ(train().code, 0);
  data = folder.write("broken.jsonl", "no row\n");
  EXPECT_THAT(train().err, HasSubstr("already holds a complete run"));
  EXPECT_THAT(train("", {"--resume"}).err, HasSubstr("has no checkpoint to continue from"));
}

TEST_F(CliDisk, DamagedDirectionsAreFoundAgain) {
  for (const char* basis : {"activations", "weights"}) {
    const std::string more = osft_until_cache + (folder / "cache").string() + ", basis: " + basis + "}\n";
    ASSERT_EQ(train(more).code, 0);
    const std::string whole = read_text(run / "model.safetensors");
    const fs::path cache = fs::directory_iterator(folder / "cache")->path();
    const std::string file = read_text(cache);
    std::vector<std::string> damaged = {"", file.substr(0, 5), file.substr(0, file.size() / 2), file + "x",
                                        "\xff\xff\xff\xff\xff\xff\xff\x7f" + file.substr(8)};
    for (const std::size_t at : {std::size_t{1}, std::size_t{20}, std::size_t{200}, file.size() / 2, file.size() - 1}) {
      damaged.push_back(file);
      damaged.back()[at] ^= 4;
    }
    for (const std::string& text : damaged) {
      fs::remove_all(run);
      std::ofstream(cache, std::ios::binary) << text;
      const CommandResult again = train(more);
      ASSERT_EQ(again.code, 0) << again.err;
      EXPECT_THAT(again.err, HasSubstr("directions are searched for again"));
      EXPECT_EQ(read_text(run / "model.safetensors"), whole);
      EXPECT_EQ(read_text(cache), file);
    }
    fs::remove_all(run);
    EXPECT_THAT(train(more).err, HasSubstr(" from " + cache.string()));
    fs::remove_all(run);
    fs::remove_all(folder / "cache");
  }
}

TEST_F(CliDisk, PathsThatCannotBeReadAreTheUsersToMend) {
  fs::create_directory_symlink(folder / "loop", folder / "loop");
  std::vector<std::string> bad = {folder / "loop", folder / std::string(300, 'n'), folder / "loop/model"};
  if (::geteuid() != 0) {
    fs::create_directory(folder / "locked");
    fs::copy(folder / "base", folder / "locked/model");
    fs::permissions(folder / "locked", fs::perms::none);
    bad.push_back(folder / "locked/model");
  }
  const auto expect_named = [](const CommandResult& result, const std::string& path) {
    EXPECT_EQ(result.code, 2) << path << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(path));
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  };
  folder.write("run.yaml", config());
  for (const std::string& path : bad) {
    for (const char* command : {"train", "plan"}) {
      expect_named(inlay({command, folder / "run.yaml", "--base_model", path}), path);
      expect_named(inlay({command, folder / "run.yaml", "--datasets", "[{path: " + path + "}]"}), path);
    }
    expect_named(inlay({"train", folder / "run.yaml", "--output_dir", path}), path);
    expect_named(inlay({"eval", path, "--data", data}), path);
    expect_named(inlay({"eval", folder / "base", "--data", path}), path);
    expect_named(inlay({"info", path}), path);
    expect_named(inlay({"report", path}), path);
    expect_named(inlay({"grad", folder / "base", "--data", data, "--out", path}), path);
  }
  if (fs::exists(folder / "locked")) fs::permissions(folder / "locked", fs::perms::owner_all);
}

TEST_F(CliDisk, AMetricsLineThatIsNoRecordIsNamed) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  fs::remove_all(run / "checkpoint-4");
  fs::remove(run / "summary.json");
  const std::string whole = read_text(run / "metrics.jsonl");
  folder.write("run/metrics.jsonl", whole + "{\"step\":\"x\"}\n");
  const CommandResult resumed = train("", {"--resume"});
  EXPECT_EQ(resumed.code, 2);
  EXPECT_THAT(resumed.err, HasSubstr("metrics.jsonl:5: step"));
  folder.write("run/metrics.jsonl", whole + "{\"step\": 4, \"lo");  // as a killed process leaves it
  const CommandResult torn = train("", {"--resume"});
  EXPECT_EQ(torn.code, 0) << torn.err;
}

TEST_F(CliDisk, HugeNumbersOfEpochsAndThreadsDoNoHarm) {
  for (const char* epochs : {"1e18", "1e300"}) {
    const CommandResult result = train(std::string("num_epochs: ") + epochs + "\n");
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("num_epochs"));
  }
  const CommandResult threads = train("", {}, {.environment = {{"OMP_NUM_THREADS", "100000"}}});
  EXPECT_EQ(threads.code, 0) << threads.err;
}

// An evaluation that takes far longer than the signal, which comes when it has begun.
class CliSignals : public CliDisk {
 protected:
  static std::ptrdiff_t lines_in(const fs::path& file) {
    const std::string text = read_text(file);
    return std::count(text.begin(), text.end(), '\n');
  }

  CliSignals() {
    std::string many;
    for (int i = 0; i < 20000; ++i) many += read_text(data);
    folder.write("many.jsonl", many);
  }
};

TEST_F(CliSignals, EndARunInItsEvaluationAndNothingIsLost) {
  const std::string more =
      "eval_steps: 2\neval_on_start: false\ntest_datasets: [{path: " + (folder / "many.jsonl").string() + "}]\n";
  const CommandResult stopped =
      train(more, {}, {.interrupt_when = [&] { return lines_in(run / "metrics.jsonl") == 2; }, .signal = SIGTERM});
  EXPECT_EQ(stopped.code, 143) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("interrupted after step 2"));
  EXPECT_THAT(read_text(run / "metrics.jsonl"), Not(HasSubstr("eval_loss")));
  EXPECT_TRUE(nlohmann::json::parse(read_text(run / "checkpoint-2/trainer_state.json")).at("evaluation_due"));
}

TEST_F(CliSignals, EndAStudyInItsFirstEvaluation) {
  folder.write("study.yaml", "base_model: " + (folder / "base").string() + "\noutput_dir: " + run.string() +
                                 "\ntasks: [{name: a, train: " + data.string() +
                                 ", eval: " + (folder / "many.jsonl").string() +
                                 "}]\nmethods: [{name: sft, learning_rates: [1.0e-3]}]\n"
                                 "training: {sequence_len: 64, max_steps: 2, device: cpu, dtype: fp32}\n");
  const CommandResult stopped =
      inlay({"continual", folder / "study.yaml"},
            {.interrupt_when = [&] { return fs::exists(run / "study.json"); }, .signal = SIGHUP});
  EXPECT_EQ(stopped.code, 129) << stopped.err;
  EXPECT_FALSE(fs::exists(run / "base-evaluation.json"));
}

}  // namespace
}  // namespace inlay::testing
