#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>

#include "support/command.h"
#include "support/paths.h"

// Runs that die: at every single operation on the disk (INLAY_TEST_FAULT, see io/fault.h), with a disk that is full
// from some operation on, and at any moment. Whatever happened, the run resumes, or begins again where nothing was
// saved, and its result is that of a run that was left alone, bit for bit. INLAY_CRASH_SECONDS makes more of it, at
// random.
namespace inlay::testing {
namespace {

namespace fs = std::filesystem;

constexpr int killed = 128 + SIGKILL, finished = 0, refused = 2;

class CrashedRun {
 public:
  explicit CrashedRun(const std::string& method) {
    fs::copy(source_folder() / "tests/golden/models/llama_llama3_tied", folder_ / "base");
    for (const char* name : {"expected.json", "expected.safetensors"}) fs::remove(folder_ / "base" / name);
    folder_.write("run.yaml", "base_model: " + (folder_ / "base").string() + "\noutput_dir: " + run_.string() +
                                  "\ndatasets: [{path: " + (folder_ / "base/data.jsonl").string() +
                                  "}]\nlearning_rate: 1.0e-3\nsequence_len: 64\nmicro_batch_size: 2\ndtype: fp32\n"
                                  "sample_packing: false\nmax_steps: 3\nsave_steps: 1\nsave_total_limit: 1\n"
                                  "device: cpu\ndataset_prepared_path: off\n" +
                                  method);
    EXPECT_EQ(go({}).code, finished);
    expected_ = files();
  }

  // As a user would: --resume where there is a checkpoint, otherwise from the beginning.
  CommandResult go(CommandLimits limits) const {
    std::vector<std::string> arguments = {"train", folder_ / "run.yaml"};
    if (holds_checkpoint()) arguments.push_back("--resume");
    limits.environment.push_back({"OMP_NUM_THREADS", "1"});
    return inlay(arguments, limits);
  }

  // Runs from the beginning through the crashes given, and then without any. False: the first one never came.
  bool survives(const std::vector<CommandLimits>& crashes) const {
    fs::remove_all(run_);
    bool first = true, reached = true;
    for (const CommandLimits& crash : crashes) {
      const CommandResult result = go(crash);
      EXPECT_THAT(result.code, ::testing::AnyOf(killed, finished, refused)) << result.err;
      if (result.code == refused) EXPECT_THAT(result.err, ::testing::HasSubstr("No space left on device"));
      if (first) reached = result.code != finished;
      first = false;
      if (fs::exists(run_ / "summary.json")) break;
    }
    if (!fs::exists(run_ / "summary.json")) {
      const CommandResult last = go({});
      EXPECT_EQ(last.code, finished) << last.err;
    }
    const auto left = files();
    EXPECT_EQ(names_of(left), names_of(expected_));
    for (const auto& [name, content] : expected_) EXPECT_TRUE(left.contains(name) && left.at(name) == content) << name;
    return reached;
  }
  bool survives(const std::string& fault) const {
    return survives({CommandLimits{.environment = {{"INLAY_TEST_FAULT", fault}}}});
  }

 private:
  bool holds_checkpoint() const {
    if (!fs::exists(run_)) return false;
    return std::any_of(fs::directory_iterator(run_), fs::directory_iterator(), [](const fs::directory_entry& entry) {
      return entry.path().filename().string().starts_with("checkpoint-");
    });
  }
  using Files = std::map<std::string, std::string>;

  static std::vector<std::string> names_of(const Files& files) {
    std::vector<std::string> names;
    for (const auto& [name, content] : files) names.push_back(name);
    return names;
  }
  // Names and contents; without what tells the time, and what a run that died before its first checkpoint has left.
  Files files() const {
    Files result;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(run_)) {
      const std::string name = entry.path().lexically_relative(run_);
      if (!entry.is_regular_file() || name.starts_with("metrics-")) continue;
      const bool timed = name.ends_with("summary.json") || name.ends_with("metrics.jsonl") ||
                         name.ends_with("trainer_state.json") || name.ends_with("checkpoint.json");
      result[name] = timed ? "" : read_text(entry.path());
    }
    return result;
  }

  TempFolder folder_;
  fs::path run_ = folder_ / "run";
  Files expected_;
};

// In memory where there is such a folder: what survives a process need not reach a disk, and waiting for it takes most
// of the time.
class CliCrash : public ::testing::Test {
 protected:
  CliCrash() {
    if (fs::is_directory("/dev/shm")) in_memory_.emplace("TMPDIR", "/dev/shm");
  }

 private:
  std::optional<Setting> in_memory_;
};

const std::string osft = "osft: {unfreeze_rank_ratio: 0.5, cache: off, basis: weights}\n";
const std::string adapters =
    "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_dropout: 0.1\nlora_target_linear: true\npeft_use_dora: true\n";

// One death per run, at operation after operation of it: every seventh, or with more time every one.
TEST_F(CliCrash, AtEveryOperationOnTheDisk) {
  const CrashedRun run("");
  const int stride = std::getenv("INLAY_CRASH_SECONDS") == nullptr ? 3 : 1;
  int operation = 1;
  while (run.survives("kill:" + std::to_string(operation)) && !::testing::Test::HasFailure()) operation += stride;
  EXPECT_GT(operation, 50);
}

TEST_F(CliCrash, OnAFullDisk) {
  const CrashedRun run("");
  for (int operation = 1; run.survives("enospc:" + std::to_string(operation)); operation += 29) {
    if (::testing::Test::HasFailure()) break;
  }
}

TEST_F(CliCrash, InOsft) {
  const CrashedRun run(osft);
  for (int operation = 3; run.survives("kill:" + std::to_string(operation)); operation += 13) {
    if (::testing::Test::HasFailure()) break;
  }
}

TEST_F(CliCrash, InAdapters) {
  const CrashedRun run(adapters);
  for (int operation = 2; run.survives("kill:" + std::to_string(operation)); operation += 13) {
    if (::testing::Test::HasFailure()) break;
  }
}

// Several deaths in one run, by faults and by the clock.
TEST_F(CliCrash, AtRandom) {
  const char* variable = std::getenv("INLAY_CRASH_SECONDS");
  const long seconds = variable == nullptr ? 0 : std::atol(variable);
  std::random_device device;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const CrashedRun runs[] = {CrashedRun(""), CrashedRun(osft), CrashedRun(adapters)};
  int round = 0;
  do {
    const unsigned seed = seconds > 0 ? device() : 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    for (int i = 0; i < 5; ++i, ++round) {
      std::vector<CommandLimits> crashes;
      for (unsigned crash = 0, count = 1 + random() % 3; crash < count; ++crash) {
        CommandLimits limits{.signal = SIGKILL};
        if (random() % 3 == 0) {
          limits.interrupt_after_ms = 1 + static_cast<int>(random() % 400);
        } else {
          limits.environment = {
              {"INLAY_TEST_FAULT", (random() % 4 == 0 ? "enospc:" : "kill:") + std::to_string(1 + random() % 500)}};
        }
        crashes.push_back(limits);
      }
      runs[random() % 3].survives(crashes);
      if (::testing::Test::HasFailure()) return;
    }
  } while (std::chrono::steady_clock::now() < end);
  if (seconds > 0) std::printf("%d runs died and came to the same end\n", round);
}

}  // namespace
}  // namespace inlay::testing
