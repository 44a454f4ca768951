#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "support/command.h"

namespace inlay {
namespace {

using testing::inlay;
using testing::run;

nlohmann::json findings(const testing::CommandResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out)["findings"];
}

TEST(CliDoctor, SaysWhatWasFoundAndWhatIsMissing) {
  const testing::CommandResult result = inlay({"doctor"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* name : {"processor", "cores", "memory", "GPU", "MPI", "disk", "cache"}) {
    EXPECT_NE(result.out.find(name), std::string::npos) << name << " in " << result.out;
  }
  const nlohmann::json all = findings(inlay({"doctor", "--json"}));
  EXPECT_GT(all["memory"]["bytes"].get<std::int64_t>(), 0);
  EXPECT_GE(all["memory"]["bytes"], all["memory"]["usable_bytes"]);
  EXPECT_GT(all["disk"]["free_bytes"].get<std::int64_t>(), 0);
  for (const auto& [name, finding] : all.items()) {
    EXPECT_EQ(finding["state"] != "found", finding.contains("cost")) << name << ": what is missing has a cost";
  }
}

// Room that nobody may write into is none.
TEST(CliDoctor, SaysWhereNothingCanBeWritten) {
  testing::CommandLimits limits;
  limits.environment = {{"XDG_CACHE_HOME", "/dev/null"}};
  const nlohmann::json cache = findings(inlay({"doctor", "--json"}, limits))["cache"];
  EXPECT_EQ(cache["state"], "missing");
  EXPECT_EQ(cache["text"], "nothing can be written to /dev/null/inlay: /dev/null is not a folder");
  const testing::TempFolder closed;
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::permissions(closed.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  limits.environment = {{"XDG_CACHE_HOME", closed.path().string()}};
  EXPECT_EQ(findings(inlay({"doctor", "--json"}, limits))["cache"]["text"],
            "nothing can be written to " + (closed / "inlay").string() + ": Permission denied");
}

TEST(CliDoctor, CountsTheCoresThatAreGranted) {
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  int first = 0;
  while (CPU_ISSET(first, &set) == 0) ++first;
  const auto result = run("taskset", {"-c", std::to_string(first), testing::program(), "doctor", "--json"});
  if (result.code == 127) GTEST_SKIP() << "taskset is not installed";
  EXPECT_EQ(findings(result)["cores"]["affinity"], 1);
  EXPECT_LE(findings(result)["cores"]["usable"].get<double>(), 1);
}

// A control group of the first or the second version that grants half a processor, where this process may make one.
class HalfAProcessor {
 public:
  HalfAProcessor() {
    std::error_code error;
    const std::string name = "inlay-test-" + std::to_string(::getpid());
    const std::filesystem::path root = "/sys/fs/cgroup";
    folder_ = (std::filesystem::exists(root / "cpu", error) ? root / "cpu" : root) / name;
    made_ =
        std::filesystem::create_directory(folder_, error) &&
        (says("cpu.max", "50000 100000") || (says("cpu.cfs_period_us", "100000") && says("cpu.cfs_quota_us", "50000")));
  }
  ~HalfAProcessor() {
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }
  HalfAProcessor(const HalfAProcessor&) = delete;
  HalfAProcessor& operator=(const HalfAProcessor&) = delete;

  bool made() const { return made_; }
  // A shell's command that goes into the group and becomes another.
  std::string enter(const std::string& command) const {
    return "echo $$ >" + (folder_ / "cgroup.procs").string() + " && exec " + command;
  }

 private:
  bool says(const char* file, const char* text) const {
    if (!std::filesystem::exists(folder_ / file)) return false;
    std::ofstream out(folder_ / file);
    out << text << std::flush;
    return out.good();
  }

  std::filesystem::path folder_;
  bool made_ = false;
};

TEST(CliDoctor, CountsTheProcessorsThatAControlGroupGrants) {
  const HalfAProcessor group;
  if (!group.made()) GTEST_SKIP() << "no control group with a quota can be made here";
  const auto result = run("sh", {"-c", group.enter(testing::program().string() + " doctor --json")});
  EXPECT_EQ(findings(result)["cores"]["quota"], 0.5);
  EXPECT_EQ(findings(result)["cores"]["usable"], 0.5);
}

TEST(CliDoctor, SaysWhichProgramsAreNotThere) {
  const nlohmann::json all = findings(inlay({"doctor", "--json"}, {.environment = {{"PATH", "/nowhere"}}}));
  EXPECT_EQ(all["MPI"]["state"], "missing");
  EXPECT_NE(all["MPI"]["cost"].get<std::string>().find("openmpi-bin"), std::string::npos);
}

TEST(CliDoctor, TheVersionNamesCommitCompilerAndKernels) {
  const std::string text = inlay({"--version"}).out;
  for (const char* word : {"inlay ", "commit ", "kernels: "}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
}

}  // namespace
}  // namespace inlay
