#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/command.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;

TEST(CliProcesses, AnErrorThatAllHaveIsSaidOnce) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CommandResult missing = mpirun(3, {program().string(), "train", "/nowhere/run.yaml"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(times(missing.err, "inlay: /nowhere/run.yaml: no such file"), 1u) << missing.err;
  EXPECT_EQ(times(missing.err, "inlay: "), 1u) << missing.err;
  const CommandResult started = inlay({"train", "/nowhere/run.yaml", "--processes", "2"});
  EXPECT_EQ(started.code, 2);
  EXPECT_TRUE(started.err.starts_with("inlay: /nowhere/run.yaml: no such file")) << started.err;
  EXPECT_EQ(times(started.err, "\n"), 1u) << "mpirun has nothing to add to it: " << started.err;
}

// As some supervisors and scripts start programs. A minute is for ever here.
TEST(CliProcesses, EndWhereTheEndOfChildrenIsIgnored) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CommandResult result = run("timeout", {"60", "env", "--ignore-signal=CHLD", program().string(), "train",
                                               "/nowhere/run.yaml", "--processes", "2"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/nowhere/run.yaml: no such file"));
}

// What is wrong with mpirun itself is still said.
TEST(CliProcesses, WhatMpirunSaysOfItselfIsSeen) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CommandResult result = inlay({"train", "/nowhere/run.yaml", "--processes", "2"},
                                     {.environment = {{"OMPI_MCA_orte_tmpdir_base", "/proc/nowhere"}}});
  EXPECT_NE(result.code, 0);
  EXPECT_GT(times(result.err, "\n"), 1u) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/proc/nowhere"));
}

TEST(CliProcesses, WhatRunsInOneProcessSaysSo) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"info", "/nowhere"}, {"eval", "/nowhere", "--data", "/nowhere"}}) {
    std::vector<std::string> words = command;
    words.insert(words.begin(), program().string());
    const CommandResult result = mpirun(2, words);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(times(result.err, "inlay: inlay " + command[0] + " runs in one process; start it without mpirun or srun"),
              1u)
        << result.err;
  }
}

TEST(CliProcesses, MistakesAreNamed) {
  EXPECT_THAT(inlay({"train", "x.yaml", "--processes", "none"}).err,
              HasSubstr("--processes: expected a number of at least 1 or auto, got 'none'"));
  EXPECT_THAT(inlay({"bench", "collectives"}).err, HasSubstr("mpirun -n N inlay bench collectives"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"train", "x.yaml"}, {"train", "x.yaml", "--processes", "2"}}) {
    const CommandResult torchrun = inlay(
        words, {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "host"}}});
    EXPECT_EQ(torchrun.code, 2);
    EXPECT_TRUE(torchrun.err.starts_with("inlay: torchrun (WORLD_SIZE in the environment) cannot start"))
        << torchrun.err;
    EXPECT_THAT(torchrun.err, HasSubstr("mpirun -n N inlay train"));
  }
}

// In place of mpirun stands what shows how it was called, and what came of a signal.
TEST(CliProcesses, SignalsReachMpirunInAFormThatItPassesOn) {
  const TempFolder folder;
  const std::filesystem::path mpirun =
      folder.write("mpirun", "#!/bin/sh\ntrap 'exit 138' USR1\nprintf '%s\\n' \"$*\" >" + (folder / "called").string() +
                                 "\nwhile :; do sleep 0.05; done\n");
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(folder / "called");
    const CommandResult result = inlay({"train", "run.yaml", "--processes", "4", "--quiet"},
                                       {.interrupt_when = [&] { return read_text(folder / "called").ends_with('\n'); },
                                        .signal = signal,
                                        .environment = {{"PATH", folder.path().string() + ":" + std::getenv("PATH")}}});
    EXPECT_EQ(result.code, 128 + signal);
    const std::string called = read_text(folder / "called");
    EXPECT_TRUE(called.starts_with("-n 4 --bind-to none --oversubscribe ")) << called;
    EXPECT_TRUE(called.ends_with(program().string() + " train run.yaml --quiet\n")) << called;
  }
}

TEST(CliProcesses, TheNetworkIsMeasured) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const TempFolder folder;
  const auto measure = [&](const char* iterations) {
    return mpirun(2,
                  {program().string(), "bench", "collectives", "--json", "--device", "cpu", "--largest", "1",
                   "--iterations", iterations},
                  {.environment = {{"XDG_CACHE_HOME", folder.path().string()}}});
  };
  const CommandResult result = measure("2");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"network_gb_per_s\":"));
  EXPECT_EQ(times(result.out, "\"processes\":2,\"nodes\":1"), 1u) << result.out;
  EXPECT_THAT(result.out, HasSubstr("\"kept\":\"yes\""));
  EXPECT_THAT(measure("1").out,
              HasSubstr("\"kept\":\"no: a measurement with larger tensors or more iterations is kept"));
}

}  // namespace
}  // namespace inlay::testing
