#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/paths.h"

// Runs that die: at every single operation on the disk (INLAY_TEST_FAULT, see io/fault.h), with a disk that is full
// from some operation on, and at any moment; of several processes, to one of them. Whatever happened, the run resumes,
// or begins again where nothing was saved, and its result is that of a run that was left alone, bit for bit.
// With INLAY_CRASH_SECONDS no operation is left out, and runs die at random for so long.
namespace inlay::testing {
namespace {

namespace fs = std::filesystem;

constexpr int killed = 128 + SIGKILL, finished = 0, refused = 2;

// What happens to a run, or to one rank of it: a fault on the disk, or SIGKILL after so long.
struct Crash {
  std::string fault;
  int after_ms = 0;
  int rank = 0;
};

bool has_time() { return std::getenv("INLAY_CRASH_SECONDS") != nullptr; }

class CrashedRun {
 public:
  // Of the method's keys, @ is a folder that is empty when a run begins.
  explicit CrashedRun(std::string method, int processes = 1) : processes_(processes) {
    for (std::size_t at; (at = method.find('@')) != method.npos;) method.replace(at, 1, kept_.string());
    const auto unless_given = [&](const std::string& key, const std::string& value) {
      return method.find(key + ":") == method.npos ? key + ": " + value + "\n" : "";
    };
    fs::copy(source_folder() / "tests/golden/models/llama_llama3_tied", folder_ / "base");
    for (const char* name : {"expected.json", "expected.safetensors"}) fs::remove(folder_ / "base" / name);
    folder_.write("run.yaml", "base_model: " + (folder_ / "base").string() + "\noutput_dir: " + run_.string() +
                                  "\ndatasets: [{path: " + (folder_ / "base/data.jsonl").string() +
                                  "}]\nlearning_rate: 1.0e-3\nsequence_len: 64\nmicro_batch_size: 2\ndtype: fp32\n"
                                  "sample_packing: false\nmax_steps: 3\nsave_total_limit: 1\ndevice: cpu\n" +
                                  unless_given("save_steps", "1") + unless_given("dataset_prepared_path", "off") +
                                  method);
    EXPECT_EQ(go({}).code, finished);
    expected_ = files();
  }

  // As a user would: --resume where there is a checkpoint, otherwise from the beginning.
  CommandResult go(const Crash& crash) const {
    std::vector<std::string> arguments = {"train", folder_ / "run.yaml"};
    if (holds_checkpoint()) arguments.emplace_back("--resume");
    CommandLimits limits{.interrupt_after_ms = crash.after_ms, .signal = SIGKILL};
    if (processes_ == 1) {
      limits.environment = {{"OMP_NUM_THREADS", "1"}, {"INLAY_TEST_FAULT", crash.fault}};
      return inlay(arguments, limits);
    }
    // A rank that dies ends the others within half a minute.
    std::optional<std::chrono::steady_clock::time_point> died;
    if (crash.after_ms > 0) {
      limits.interrupt_when = [&] { return process_of_rank(folder_.path(), crash.rank) > 0; };
      limits.interrupt = [&] {
        signal_rank(folder_.path(), crash.rank, SIGKILL);
        died = std::chrono::steady_clock::now();
      };
    }
    arguments.insert(arguments.begin(), odd_rank(folder_, crash.rank, "INLAY_TEST_FAULT=" + crash.fault));
    const CommandResult result = mpirun(processes_, arguments, limits);
    if (died) {
      EXPECT_LT(std::chrono::steady_clock::now() - *died, std::chrono::seconds(30)) << result.err;
    }
    return result;
  }

  // Runs from the beginning through the crashes given, and then without any. False: the first one never came.
  bool survives(const std::vector<Crash>& crashes) const {
    fs::remove_all(run_);
    fs::remove_all(kept_);
    bool first = true, reached = true;
    for (const Crash& crash : crashes) {
      const CommandResult result = go(crash);
      EXPECT_THAT(result.code, ::testing::AnyOf(killed, finished, refused)) << result.err;
      if (result.code == refused) {
        EXPECT_THAT(result.err, ::testing::HasSubstr("No space left on device"));
      }
      if (first) reached = result.code != finished;
      first = false;
      if (result.code == killed) ++kills_;
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
  // One crash per run, "kill" or "enospc", at one operation after the other: every stride-th, or with more time each.
  // Returns how many there are.
  int survives_all(const std::string& fault, int stride) const {
    int operation = has_time() ? 1 : 1 + stride / 2;
    while (survives({Crash{.fault = fault + ":" + std::to_string(operation)}}) && !::testing::Test::HasFailure()) {
      operation += has_time() ? 1 : stride;
    }
    return operation;
  }
  // What it says when nothing happens to it.
  std::string said() const {
    fs::remove_all(run_);
    return go({}).err;
  }
  // What a plan for it would take.
  std::size_t planned_bytes() const {
    const CommandResult plan = inlay({"plan", folder_ / "run.yaml", "--json", "--save_steps", "0"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    return nlohmann::json::parse(plan.out).at("device_peak_bytes");
  }

  int processes() const { return processes_; }
  int kills() const { return kills_; }

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
                         name.ends_with("trainer_state.json") || name.ends_with("checkpoint.json") ||
                         name == "README.md";
      result[name] = timed ? "" : read_text(entry.path());
    }
    return result;
  }

  TempFolder folder_;
  fs::path run_ = folder_ / "run", kept_ = folder_ / "kept";
  Files expected_;
  int processes_;
  mutable int kills_ = 0;
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

TEST_F(CliCrash, AtEveryOperationOnTheDisk) { EXPECT_GT(CrashedRun("").survives_all("kill", 3), 50); }

TEST_F(CliCrash, OnAFullDisk) { CrashedRun("").survives_all("enospc", 29); }

TEST_F(CliCrash, InOsft) { CrashedRun(osft).survives_all("kill", 13); }

TEST_F(CliCrash, InAdapters) { CrashedRun(adapters).survives_all("kill", 13); }

// There is nothing to resume from: a run that died begins again, also where it died in the middle of its result.
TEST_F(CliCrash, WithoutCheckpoints) {
  const CrashedRun run("save_steps: 0\n");
  EXPECT_GT(run.survives_all("kill", 3), 20);
  run.survives_all("enospc", 7);
}

// Directions and tokens that are kept for the next run: what is half written there is never taken.
TEST_F(CliCrash, WhileThingsAreKeptForLaterRuns) {
  const CrashedRun run(
      "dataset_prepared_path: @/data\nosft: {unfreeze_rank_ratio: 0.5, basis: weights, cache: @/directions}\n");
  run.survives_all("kill", 13);
  run.survives_all("enospc", 37);
}

// Where memory has no room for a copy of the state, checkpoints are written between the steps.
TEST_F(CliCrash, InSavesBetweenTheSteps) {
  const double bytes = static_cast<double>(CrashedRun("").planned_bytes() + 1024);
  const CrashedRun run("memory: {device: " + fmt::format("{}", bytes / 0x1p30) + "}\n");
  EXPECT_THAT(CrashedRun("").said(), ::testing::HasSubstr("written during the next steps"));
  EXPECT_THAT(run.said(), ::testing::Not(::testing::HasSubstr("written during the next steps")));
  run.survives_all("kill", 13);
}

// Several deaths in one run, by faults and by the clock: a few runs, or with more time as many as there is time for.
void crash_at_random(std::span<const CrashedRun> runs, int rounds, int longest_ms) {
  const long seconds =
      has_time() ? (std::atol(std::getenv("INLAY_CRASH_SECONDS")) + 3) / 4 : 0;  // four tests share them
  std::random_device device;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int round = 0;
  do {
    const unsigned seed = seconds > 0 ? device() : 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    for (int i = 0; i < rounds; ++i, ++round) {
      const CrashedRun& run = runs[static_cast<std::size_t>(below(static_cast<int>(runs.size())))];
      std::vector<Crash> crashes(static_cast<std::size_t>(1 + below(3)));
      for (Crash& crash : crashes) {
        crash.rank = below(run.processes());
        if (below(3) == 0) {
          crash.after_ms = 1 + below(longest_ms);
        } else {
          crash.fault = (below(4) == 0 ? "enospc:" : "kill:") + std::to_string(1 + below(500 / run.processes()));
        }
      }
      run.survives(crashes);
      if (::testing::Test::HasFailure()) return;
    }
  } while (std::chrono::steady_clock::now() < end);
  int kills = 0;
  for (const CrashedRun& run : runs) kills += run.kills();
  if (seconds > 0) std::printf("%d runs, killed %d times, came to the same end\n", round, kills);
}

TEST_F(CliCrash, AtRandom) {
  const CrashedRun runs[] = {CrashedRun(""), CrashedRun(osft), CrashedRun(adapters)};
  crash_at_random(runs, 5, 400);
}

TEST_F(CliCrash, OfARankAtRandom) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CrashedRun runs[] = {CrashedRun("parallel: {zero: 3}\n", 3), CrashedRun(osft + "parallel: {zero: 1}\n", 2),
                             CrashedRun(adapters + "parallel: {zero: 2}\n", 3)};
  crash_at_random(runs, 3, 800);
}

}  // namespace
}  // namespace inlay::testing
