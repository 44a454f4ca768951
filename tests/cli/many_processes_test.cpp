#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/lengths.h"

// Training on several processes, as a user starts and disturbs it: what comes out is what one process makes of the
// same steps, and whatever happens to a rank, all end and nothing that was saved is lost.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class CliManyProcesses : public ::testing::Test {
 protected:
  CliManyProcesses() {
    if (fs::is_directory("/dev/shm")) in_memory_.emplace("TMPDIR", "/dev/shm");
    folder_.emplace();
  }
  void SetUp() override {
    if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
    take_model("llama_llama3_tied");
  }

  const TempFolder& folder() const { return *folder_; }
  fs::path run(const std::string& name) const { return folder() / name; }

  // Documents of very unequal lengths, so that ranks have unequal work. Where a gradient is nothing but rounding, Adam
  // makes a whole step of it; a larger epsilon keeps such differences as small as they are.
  void take_model(const std::string& name) const {
    fs::remove_all(folder() / "base");
    fs::copy(source_folder() / "tests/golden/models" / name, folder() / "base");
    for (const char* file : {"expected.json", "expected.safetensors"}) fs::remove(folder() / "base" / file);
    std::string rows;
    for (const std::int64_t length : random_lengths(24, 60)) {
      nlohmann::json ids = nlohmann::json::array();
      for (std::int64_t i = 0; i <= length; ++i) ids.push_back((7 * i * i + 3 * length) % 90);
      rows += nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    const fs::path data = folder().write("data.jsonl", rows);
    folder().write("run.yaml",
                   "base_model: " + (folder() / "base").string() + "\ndatasets: [{path: " + data.string() +
                       "}]\nlearning_rate: 1.0e-3\nadam_epsilon: 1.0e-5\nlr_scheduler: constant\nsequence_len: 64\n"
                       "micro_batch_size: 1\nsample_packing: false\nmax_steps: 4\ndtype: fp32\ndevice: cpu\n"
                       "dataset_prepared_path: off\n");
  }

  Words arguments(const std::string& name, const Words& more) const {
    Words all = {"train", folder() / "run.yaml", "--output_dir", run(name)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  CommandResult train(int processes, const std::string& name, Words more = {}, CommandLimits limits = {}) const {
    if (processes > 1) more.insert(more.end(), {"--processes", std::to_string(processes)});
    for (const char* threads : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
      limits.environment.push_back({threads, "1"});
    return inlay(arguments(name, more), std::move(limits));
  }
  // The same on three processes of which one is odd.
  CommandResult train_with_odd(int rank, const std::string& name, const std::string& environment,
                               const std::string& odd, const Words& more = {}) const {
    Words command = arguments(name, more);
    command.insert(command.begin(), odd_rank(folder(), rank, environment, odd));
    return mpirun(3, command);
  }

  std::vector<double> losses(const std::string& name) const {
    std::vector<double> result;
    std::istringstream lines(read_text(run(name) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line).at("loss"));
    return result;
  }
  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(read_text(run(name) / "summary.json"));
  }
  // All files with tensors of a result or a checkpoint.
  std::map<std::string, std::string> weights(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(run(name))) {
      if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = read_text(entry.path());
    }
    EXPECT_FALSE(files.empty()) << name;
    return files;
  }
  Words names(const std::string& name) const {
    Words result;
    for (const auto& entry : fs::directory_iterator(run(name))) result.push_back(entry.path().filename());
    return result;
  }
  std::ptrdiff_t steps_done(const std::string& name) const {
    const std::string text = read_text(run(name) / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }

  void expect_same(const std::string& name, const std::string& expected) const {
    EXPECT_LE(relative_error(losses(name), losses(expected)), 1e-6);
    TestBench bench(Device::cpu, 1 << 16);
    for (const auto& [file, text] : weights(expected)) {
      const io::SafetensorsFile ours(run(name) / file), theirs(run(expected) / file);
      ASSERT_EQ(ours.names(), theirs.names());
      for (const std::string& tensor : theirs.names()) {
        if (theirs.find(tensor)->dtype != DType::f32) continue;  // rounded: the least difference may become one bit
        // Adapters have grown from zero, and a bias of keys changes by nothing but rounding errors: these weigh more
        // there.
        const bool small = tensor.find("lora") != tensor.npos || tensor.ends_with("k_proj.bias");
        EXPECT_LE(relative_error(bench.read(ours.tensor(tensor)), bench.read(theirs.tensor(tensor))),
                  small ? 1e-5 : 1e-6)
            << file << ": " << tensor;
      }
    }
  }

  // When a rank is there and has done some steps, this happens to it.
  CommandLimits after_steps(int steps, int rank, int signal, const std::string& name) const {
    return {.interrupt_when = [=, this] { return steps_done(name) >= steps; },
            .interrupt = [=, this] { signal_rank(run(name), rank, signal); }};
  }

 private:
  std::optional<Setting> in_memory_;
  std::optional<TempFolder> folder_;
};

const Words osft_weights = {"--osft.unfreeze_rank_ratio", "0.5", "--osft.cache", "off", "--osft.basis", "weights"};
const Words osft_activations = {
    "--osft.unfreeze_rank_ratio", "0.5", "--osft.cache", "off", "--osft.calibration.samples", "6",
    "--osft.calibration.length",  "16"};
const Words with_lora = {"--adapter", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_target_linear", "true"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Words zero(int stage) { return {"--parallel.zero", std::to_string(stage)}; }
Words accumulation(int count) { return {"--gradient_accumulation_steps", std::to_string(count)}; }

// Does this with numbers at random, below(n) in [0, n), for a share of the seconds that INLAY_CRASH_SECONDS says;
// returns how often.
int at_random(const std::function<void(const std::function<int(int)>& below)>& work) {
  const char* const seconds = std::getenv("INLAY_CRASH_SECONDS");
  if (seconds == nullptr) return 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atol(seconds) / 4);
  std::random_device device;
  int runs = 0;
  for (; std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure(); ++runs) {
    work([&](int count) { return static_cast<int>(device() % static_cast<unsigned>(count)); });
  }
  return runs;
}

TEST_F(CliManyProcesses, LearnWhatOneProcessLearns) {
  const std::vector<std::pair<std::string, Words>> methods = {
      {"full", {}}, {"osft weights", osft_weights}, {"osft activations", osft_activations}, {"lora", with_lora}};
  const std::vector<std::vector<std::pair<int, int>>> worlds = {
      {{2, 0}, {3, 1}, {2, 2}, {3, 3}}, {{3, 1}}, {{2, 3}}, {{3, 2}}};  // processes and stage
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const auto& [name, method] = methods[m];
    const std::string alone = name + " alone";
    const CommandResult single = train(1, alone, with(method, accumulation(6)));
    ASSERT_EQ(single.code, 0) << single.err;
    for (const auto& [processes, stage] : worlds[m]) {
      const std::string among = name + " " + std::to_string(processes) + " " + std::to_string(stage);
      SCOPED_TRACE(among);
      const CommandResult many = train(processes, among, with(with(method, accumulation(6 / processes)), zero(stage)));
      ASSERT_EQ(many.code, 0) << many.err;
      expect_same(among, alone);
      EXPECT_EQ(names(among).size(), names(alone).size());
      // One of them speaks.
      for (const char* line : {"data: 24 documents", "\nmodel: ", "\nstep 4/4", "\ndone: 4 steps"}) {
        EXPECT_EQ(times(many.out + many.err, line), 1u) << line << many.out << many.err;
      }
      EXPECT_THAT(many.err, HasSubstr("ZeRO " + std::to_string(stage)));
      if (name.starts_with("osft")) {
        EXPECT_LE(summary(among).at("osft").at("leak").get<double>(), 1e-6);
      }
    }
  }
}

// As many as there are usually, and activations that leave the device meanwhile.
TEST_F(CliManyProcesses, FourAndEightLearnWhatOneLearns) {
  const CommandResult single = train(1, "alone", accumulation(8));
  ASSERT_EQ(single.code, 0) << single.err;
  for (const int processes : {4, 8}) {
    const std::string name = std::to_string(processes);
    SCOPED_TRACE(name);
    const Words offload = {"--activation_policy", "offload"};
    const CommandResult many = train(processes, name, with(with(accumulation(8 / processes), zero(3)), offload));
    ASSERT_EQ(many.code, 0) << many.err;
    expect_same(name, "alone");
    EXPECT_THAT(many.err, ::testing::ContainsRegex("data: 8 micro-batches per step on " + name +
                                                   " ranks, which differ by [0-9]+\\.[0-9] % on average"));
  }
}

// The same over NCCL, by ranks that share the GPU that there is: each seems to be on a host of its own.
TEST_F(CliManyProcesses, OverNcclLearnWhatOneProcessLearns) {
  const std::vector<Device> all = devices();
  if (std::ranges::find(all, Device::cuda) == all.end()) GTEST_SKIP() << "there is no GPU";
  const Words on_gpu = {"--device", "cuda"};
  for (const auto& [name, method] : {std::pair{std::string("full"), Words{}}, {"osft", osft_weights}}) {
    const CommandResult single = train(1, name + " alone", with(with(method, accumulation(4)), on_gpu));
    ASSERT_EQ(single.code, 0) << single.err;
    for (const auto& [processes, stage] : {std::pair{2, 0}, {2, 3}, {4, 1}, {4, 3}}) {
      const std::string among = name + " " + std::to_string(processes) + " " + std::to_string(stage);
      SCOPED_TRACE(among);
      Words command = {"bash", "-c", "NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec \"$@\"", "bash", program().string()};
      command = with(command, arguments(among, with(with(method, accumulation(4 / processes)), zero(stage))));
      const CommandResult many =
          mpirun(processes, with(command, on_gpu),
                 {.environment = {{"INLAY_SHARE_GPU", "1"}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}}});
      ASSERT_EQ(many.code, 0) << many.err;
      expect_same(among, name + " alone");
    }
  }
}

// All families are compared in tests of train/; these have experts, sinks, shards and numbers of 16 bits.
TEST_F(CliManyProcesses, OtherModelsLearnWhatTheyLearnAlone) {
  for (const std::string model : {"qwen3_moe_mixed", "gpt_oss_balance", "llama_linear_sharded", "qwen2_yarn_bf16"}) {
    SCOPED_TRACE(model);
    take_model(model);
    const CommandResult single = train(1, model + " alone", accumulation(2)),
                        many = train(2, model, with(accumulation(1), zero(3)));
    ASSERT_EQ(single.code, 0) << single.err;
    ASSERT_EQ(many.code, 0) << many.err;
    expect_same(model, model + " alone");
  }
}

TEST_F(CliManyProcesses, GiveTheSameBitsAgain) {
  for (const char* name : {"one", "two"}) {
    const CommandResult result = train(3, name, with(with(osft_weights, zero(2)), {"--save_steps", "2"}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("checkpoints: written during the next steps"));
  }
  EXPECT_EQ(losses("one"), losses("two"));
  EXPECT_EQ(weights("one"), weights("two"));
  EXPECT_EQ(weights("one/checkpoint-2"), weights("two/checkpoint-2"));
}

// Each part of the run on another number of processes, with another stage; steps stay as large as they were. With more
// time (INLAY_CRASH_SECONDS) on any numbers and stages, as often as there is time for.
TEST_F(CliManyProcesses, GoOnOnAnyNumberOfProcesses) {
  using Worlds = std::vector<std::pair<int, int>>;  // processes and stage
  const auto go_on = [this](const std::string& name, const Words& method, const Worlds& worlds) {
    SCOPED_TRACE(name + " on " + ::testing::PrintToString(worlds));
    const std::string broken = name + " broken", whole = name + " whole";
    for (int part = 0; part < 4; ++part) {
      const auto [processes, stage] = worlds[static_cast<std::size_t>(part)];
      Words more = {"--max_steps", std::to_string(2 * part + 2), "--save_steps", "2"};
      if (part > 0) more.emplace_back("--resume");
      const CommandResult result = train(processes, broken, with(with(more, method), zero(stage)));
      ASSERT_EQ(result.code, 0) << result.err;
      if (part > 0) {
        EXPECT_THAT(result.err, HasSubstr("resuming after step " + std::to_string(2 * part)));
      }
    }
    const CommandResult unbroken = train(worlds[0].first, whole, with(method, {"--max_steps", "8"}));
    ASSERT_EQ(unbroken.code, 0) << unbroken.err;
    expect_same(broken, whole);
  };
  const Worlds few = {{4, 3}, {3, 1}, {1, 0}, {2, 2}}, many = {{8, 3}, {3, 1}, {1, 0}, {4, 2}};
  const std::pair<std::string, Words> methods[] = {{"full", {}}, {"osft", osft_weights}, {"lora", with_lora}};
  for (const auto& [name, method] : methods) go_on(name, method, method.empty() ? many : few);
  const int runs = at_random([&](auto& below) {
    const auto& [name, method] = methods[static_cast<std::size_t>(below(3))];
    Worlds worlds(4);
    for (auto& [processes, stage] : worlds) processes = 1 + below(8), stage = below(4);
    for (const char* end : {" broken", " whole"}) fs::remove_all(run(name + end));
    go_on(name, method, worlds);
  });
  if (runs > 0)
    std::printf("%d runs went on four times on other numbers of processes and came to the same end\n", runs);
}

const Words endless = {"--max_steps", "100000", "--quiet"};

// A run that was stopped has left one checkpoint and nothing unfinished, no process is left of it, and it goes on from
// there: two steps later it is where a run is that nobody has stopped.
class CliManyProcessesSignals : public CliManyProcesses {
 protected:
  void expect_to_go_on(const std::string& name) const {
    int step = 0;
    for (const std::string& entry : names(name)) {
      EXPECT_FALSE(entry.starts_with('.')) << entry;
      if (!entry.starts_with("checkpoint-")) continue;
      EXPECT_EQ(step, 0) << "two checkpoints";
      step = std::stoi(entry.substr(entry.find('-') + 1));
    }
    ASSERT_GE(step, 5);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(process_of_rank(run(name), rank), 0);
    const Words until = {"--quiet", "--max_steps", std::to_string(step + 2)};
    const CommandResult resumed = train(3, name, with(until, {"--resume"})), whole = train(3, name + " whole", until);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(losses(name), losses(name + " whole"));
    EXPECT_EQ(weights(name), weights(name + " whole"));
  }
};

TEST_F(CliManyProcessesSignals, ToAnyRankEndAll) {
  for (const auto& [rank, signal] : {std::pair{0, SIGINT}, {1, SIGTERM}}) {
    const std::string name = "rank " + std::to_string(rank);
    SCOPED_TRACE(name);
    const CommandResult result = train(3, name, endless, after_steps(5, rank, signal, name));
    EXPECT_EQ(result.code, 128 + signal) << result.err;
    expect_to_go_on(name);
  }
}

TEST_F(CliManyProcessesSignals, ToTheCommandReachAllRanks) {
  const CommandResult result =
      train(3, "run", endless, {.interrupt_when = [this] { return steps_done("run") >= 5; }, .signal = SIGTERM});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  expect_to_go_on("run");
}

// While mpirun still starts the processes, or they read the model: nothing is lost, so the run ends all the same.
TEST_F(CliManyProcessesSignals, BeforeThereAreRanks) {
  for (const int milliseconds : {20, 100, 300}) {
    const auto began = std::chrono::steady_clock::now();
    const auto passed = [&] {
      return std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(milliseconds);
    };
    const std::string name = "early " + std::to_string(milliseconds);
    const CommandResult result = train(3, name, endless, {.interrupt_when = passed, .signal = SIGTERM});
    EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(process_of_rank(run(name), rank), 0);
  }
}

// However long that takes, and whatever mpirun is: what is asked for meanwhile is not forgotten.
TEST_F(CliManyProcessesSignals, ReachProcessesThatStartLate) {
  const fs::path begun = folder() / "begun";
  fs::create_directory(folder() / "bin");
  const fs::path late = folder().write("bin/mpirun", "#!/bin/sh\ntrap : USR1\nPATH=${PATH#*:}\ntouch '" +
                                                         begun.string() + "'\nsleep 2\nmpirun \"$@\"\n");
  fs::permissions(late, fs::perms::owner_all);
  const Setting first("PATH", late.parent_path().string() + ":" + std::getenv("PATH"));
  const auto has_begun = [&] { return fs::exists(begun); };
  const CommandResult result = train(3, "late", endless, {.interrupt_when = has_begun, .signal = SIGTERM});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(process_of_rank(run("late"), rank), 0);
}

TEST_F(CliManyProcesses, ARankThatStopsIsNamed) {
  for (const int rank : {0, 2}) {
    const std::string name = "rank " + std::to_string(rank);
    const CommandResult result =
        train(3, name, with(endless, {"--parallel.timeout", "2"}), after_steps(5, rank, SIGSTOP, name));
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, ::testing::ContainsRegex("inlay: rank " + std::to_string(rank) +
                                                     " on [^ ]+ has not been heard from for 2 s .*; others wait in "
                                                     "\"[a-z][^\"]+\"; all processes end"));
    for (int r = 0; r < 3; ++r) EXPECT_EQ(process_of_rank(run(name), r), 0);
  }
}

// The same at any moment and on any number of ranks, and then the run goes on from its last checkpoint to the same
// bits: as often as INLAY_CRASH_SECONDS leaves time for.
TEST_F(CliManyProcesses, ARankThatStopsAtAnyMomentIsFoundAndNothingIsLost) {
  const auto stop = [this](int processes, int rank, int steps, int stage) {
    SCOPED_TRACE(fmt::format("rank {} of {} after {} steps, ZeRO {}", rank, processes, steps, stage));
    for (const char* name : {"stopped", "whole"}) fs::remove_all(run(name));
    const Words saving = with({"--save_steps", "3", "--save_total_limit", "1", "--parallel.timeout", "5"}, zero(stage));
    const CommandResult stopped =
        train(processes, "stopped", with(endless, saving), after_steps(steps, rank, SIGSTOP, "stopped"));
    EXPECT_EQ(stopped.code, 1);
    EXPECT_THAT(stopped.err, ::testing::ContainsRegex("inlay: rank " + std::to_string(rank) +
                                                      " on [^ ]+ has not been heard from for 5 s"));
    const Words until = {"--quiet", "--max_steps", std::to_string(steps_done("stopped") + 2)};
    const CommandResult resumed = train(processes, "stopped", with(with(until, saving), {"--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    const CommandResult whole = train(processes, "whole", with(until, saving));
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(losses("stopped"), losses("whole"));
    EXPECT_EQ(weights("stopped"), weights("whole"));
  };
  const int runs = at_random([&](auto& below) {
    const int processes = 2 + below(3);
    stop(processes, below(processes), 4 + below(30), below(4));
  });
  if (runs == 0) GTEST_SKIP() << "takes long: for INLAY_CRASH_SECONDS";
  std::printf("%d ranks that stopped were found, and their runs came to the same end\n", runs);
}

// From some operation on, everything that one rank writes fails.
TEST_F(CliManyProcesses, AFullDiskOnOneRankIsNamedAndNothingHalfIsLeft) {
  const Words more = {"--save_steps", "1", "--quiet"};
  const CommandResult unbroken = train(3, "whole", more);
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  // While the first checkpoint is written, and while a later one is.
  for (const auto& [rank, operation, later] :
       {std::tuple{0, 60, false}, {0, 180, true}, {1, 5, false}, {1, 15, true}, {2, 40, true}}) {
    const std::string name = "rank " + std::to_string(rank) + " operation " + std::to_string(operation);
    SCOPED_TRACE(name);
    const CommandResult result =
        train_with_odd(rank, name, "INLAY_TEST_FAULT=enospc:" + std::to_string(operation), "", more);
    ASSERT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(times(result.err, "inlay: rank " + std::to_string(rank) + " on "), 1u) << result.err;
    EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("No space left on device"));
    for (const std::string& entry : names(name)) EXPECT_FALSE(entry.starts_with('.')) << entry;
    ASSERT_EQ(fs::exists(run(name) / "checkpoint-1"), later);
    if (!later) continue;
    const CommandResult resumed = train(3, name, with(more, {"--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(weights(name), weights("whole"));
    EXPECT_EQ(losses(name), losses("whole"));
  }
}

// A defect of one rank, on the thread that computes or on the one that writes: that rank says so, and the others
// nothing.
TEST_F(CliManyProcesses, ADefectOfOneRankIsSaidByThatRankAlone) {
  for (const auto& [rank, operation] : {std::pair{0, 60}, {1, 3}, {1, 6}, {2, 9}}) {
    const std::string name = "rank " + std::to_string(rank) + " operation " + std::to_string(operation);
    SCOPED_TRACE(name);
    const CommandResult result = train_with_odd(rank, name, "INLAY_TEST_FAULT=defect:" + std::to_string(operation), "",
                                                {"--save_steps", "1", "--quiet"});
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_THAT(result.err, ::testing::ContainsRegex("inlay: rank " + std::to_string(rank) +
                                                     " on [^ ]+: internal error: a defect on purpose"));
    EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
  }
}

// The thread that computes fails while the one beside it writes a file that takes its time: nobody waits for that, and
// the watchdog, which would blame the rank for being late, does not speak first.
TEST_F(CliManyProcesses, AnErrorIsSaidBeforeTheFileThatIsBeingWrittenIsWhole) {
  const CommandResult result = train_with_odd(0, "run", "INLAY_TEST_FAULT=stuck:optimizer.safetensors", "",
                                              with(endless, {"--save_steps", "200", "--parallel.timeout", "4"}));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, ::testing::ContainsRegex("inlay: rank 0 on [^ ]+: [^\n]*metrics.jsonl: No space left"));
  EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
}

TEST_F(CliManyProcesses, ARankThatWouldDoSomethingElseIsNamed) {
  const auto expect_named = [this](const std::string& what, const std::string& odd, const std::string& detail) {
    const CommandResult result = train_with_odd(2, "odd", "", odd);
    EXPECT_EQ(result.code, 2) << odd;
    EXPECT_THAT(result.err,
                ::testing::ContainsRegex("inlay: rank 2 on [^ ]+ has a different " + what + " from most: "));
    EXPECT_THAT(result.err, HasSubstr(detail));
    EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
    EXPECT_FALSE(fs::exists(run("odd")));
  };
  expect_named("configuration", "--learning_rate 2.0e-3", "learning_rate: 0.002, not learning_rate: 0.001");
  expect_named("configuration", "--parallel.zero 2", "zero: ");
}

// A host on which another build was installed.
TEST_F(CliManyProcesses, ARankWithAnotherProgramIsNamed) {
  const fs::path other = folder() / "other";
  fs::create_directory(other);
  for (const fs::path& file : {program(), program().parent_path() / "inlay_mpi.so"}) fs::copy(file, other);
  std::ofstream(other / program().filename(), std::ios::app) << "another build";
  const fs::path script = folder().write("host.sh", "#!/bin/sh\n[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && exec " +
                                                        (other / program().filename()).string() + " \"$@\"\nexec " +
                                                        program().string() + " \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  Words command = arguments("out", {});
  command.insert(command.begin(), script);
  const CommandResult result = mpirun(3, command);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("inlay: rank 1 on [^ ]+ has a different program from most: "));
  EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
  EXPECT_FALSE(fs::exists(run("out")));
}

// The loader's own list of what a process looks for: one process asks for neither MPI nor NCCL, and does without what
// speaks to them.
TEST_F(CliManyProcesses, OneProcessNeedsNeitherMpiNorNccl) {
  const fs::path alone = folder() / "alone";
  fs::create_directory(alone);
  fs::copy(program(), alone);
  const fs::path copy = alone / program().filename();
  const CommandResult one = testing::run(copy, arguments("out", {}), {.environment = {{"LD_DEBUG", "libs"}}});
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.err, HasSubstr("find library=libc.so.6"));
  for (const char* library : {"libmpi", "libopen-rte", "inlay_mpi", "libnccl"}) {
    EXPECT_EQ(times(one.err, library), 0u) << library;
  }
  const CommandResult several = mpirun(2, with({copy.string()}, arguments("two", {})));
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("several processes need MPI"));
}

// Also where it shows only when the model, the machine and the number of processes are known.
TEST_F(CliManyProcesses, WhatAllOfThemRefuseIsSaidOnce) {
  const std::pair<Words, std::string> mistakes[] = {
      {{"--sdft.enabled", "true", "--dataset_prepared_path", "off"},
       "sdft: 3 processes share the answers that the model writes through a folder"},
      {{"--matmul_dtype", "bf16"}, "matmul_dtype: bf16 needs dtype: bf16"},
      {with(osft_weights, {"--osft.ratios", "{nothing: 0.3}"}), "osft.ratios: 'nothing' matches no target"},
      {{"--memory.host_layers", "99"}, "memory.host_layers: 99, but the model has"}};
  for (const auto& [words, message] : mistakes) {
    const CommandResult result = train(3, "out", words);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("inlay: " + message));
    EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
  }
}

// Each rank has what its own folder holds, under the same names: a host to which the wrong files were copied.
TEST_F(CliManyProcesses, ARankWithOtherFilesIsNamed) {
  const auto here = [](const std::string& name) { return "/proc/self/cwd/" + name; };
  for (const char* host : {"same", "odd"}) {
    fs::create_directory(folder() / host);
    for (const char* model : {"base", "teacher"}) fs::copy(folder() / "base", folder() / host / model);
    for (const char* data : {"data.jsonl", "test.jsonl"}) fs::copy(folder() / "data.jsonl", folder() / host / data);
  }
  const fs::path script =
      folder().write("host.sh", "#!/bin/sh\ncd '" + folder().path().string() +
                                    "'/$([ \"$OMPI_COMM_WORLD_RANK\" = 2 ] && echo odd || echo same)\nexec " +
                                    program().string() + " \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  Words command = arguments(
      "out", {"--base_model", here("base"), "--datasets", "[{path: " + here("data.jsonl") + "}]", "--test_datasets",
              "[{path: " + here("test.jsonl") + "}]", "--kd_trainer", "true", "--kd_teacher", here("teacher")});
  command.insert(command.begin(), script);
  const auto expect_named = [&](const std::string& what, const fs::path& file, const std::string& from,
                                const std::string& to) {
    SCOPED_TRACE(what);
    const std::string whole = read_text(file);
    std::string other = whole;
    other.replace(other.rfind(from), from.size(), to);
    std::ofstream(file) << other;
    const CommandResult result = mpirun(3, command);
    std::ofstream(file) << whole;
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err,
                ::testing::ContainsRegex("inlay: rank 2 on [^ ]+ has a different " + what + " from most: "));
    EXPECT_EQ(times(result.err, "inlay: "), 1u) << result.err;
  };
  const fs::path odd = folder() / "odd";
  const auto last = [](const fs::path& file) { return read_text(file).substr(read_text(file).size() - 64); };
  for (const auto& [what, model] : {std::pair{"base model", "base"}, {"teacher", "teacher"}}) {
    const fs::path weights = odd / model / "model.safetensors";
    expect_named(what, weights, last(weights), std::string(64, '\x01'));
  }
  for (const auto& [what, data] : {std::pair{"data", "data.jsonl"}, {"test data", "test.jsonl"}}) {
    expect_named(std::string("set of ") + what + " files", odd / data, "]}", ", 7]}");
    EXPECT_FALSE(fs::exists(run("out"))) << "said before anything was done";
    const std::string text = read_text(odd / data), end = text.substr(text.rfind("]}") - 1, 3);
    expect_named(what, odd / data, end, end[0] == '1' ? "2]}" : "1]}");  // as many bytes
    fs::remove_all(run("out"));
  }
}

}  // namespace
}  // namespace inlay::testing
