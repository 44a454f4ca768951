#include "support/command.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "support/paths.h"

namespace inlay::testing {

CommandResult run(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                  CommandLimits limits) {
  static const TempFolder caches;  // a user's own stay as they are
  const TempFolder folder;
  const std::string out = folder / "out", err = folder / "err";
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    const int out_file = ::open(out.c_str(), O_CREAT | O_WRONLY, 0600),
              err_file = ::open(err.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(out_file, STDOUT_FILENO);
    ::dup2(err_file, STDERR_FILENO);
    if (limits.file_bytes > 0) {
      std::signal(SIGXFSZ, SIG_IGN);  // the write then fails with an error, as on a full disk
      const rlimit limit{limits.file_bytes, limits.file_bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ::setenv("XDG_CACHE_HOME", caches.path().c_str(), 1);
    for (const auto& [name, value] : limits.environment) ::setenv(name.c_str(), value.c_str(), 1);
    const std::string& path = program.native();
    std::vector<char*> argv = {const_cast<char*>(path.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execvp(path.c_str(), argv.data());
    std::_Exit(127);
  }
  int status = 0;
  bool ended = false;
  while (limits.interrupt_when && !ended && !limits.interrupt_when()) {
    ended = ::waitpid(child, &status, WNOHANG) == child;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(limits.interrupt_after_ms));
  if (!ended && (limits.interrupt_after_ms > 0 || limits.interrupt_when)) {
    limits.interrupt ? limits.interrupt() : static_cast<void>(::kill(child, limits.signal));
  }
  if (!ended) ::waitpid(child, &status, 0);
  CommandResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_text(out);
  result.err = read_text(err);
  return result;
}

CommandResult inlay(const std::vector<std::string>& arguments, CommandLimits limits) {
  return run(program(), arguments, std::move(limits));
}

bool has_mpirun() {
  // Containers often forbid reading another process's memory, which Open MPI would try, and complain.
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  return run("mpirun", {"--version"}).code == 0;
}

CommandResult mpirun(int ranks, const std::vector<std::string>& command, CommandLimits limits) {
  // Ranks are many and cores few: nobody waits busily, and each computes on one thread.
  std::vector<std::string> arguments = {
      "-n",  std::to_string(ranks), "--oversubscribe", "--bind-to",           "none", "--timeout", "100", "--mca",
      "btl", "self,vader",          "--mca",           "mpi_yield_when_idle", "1"};
  if (::geteuid() == 0) arguments.emplace_back("--allow-run-as-root");
  // Where this program does a part of the tests, what it starts must not.
  arguments.insert(arguments.end(), {"env", "-u", "GTEST_TOTAL_SHARDS", "-u", "GTEST_SHARD_INDEX"});
  arguments.insert(arguments.end(), command.begin(), command.end());
  limits.environment.emplace_back("OMP_NUM_THREADS", "1");
  return run("mpirun", arguments, std::move(limits));
}

pid_t process_of_rank(const std::string& word, int rank) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0';
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (read_text(entry.path() / "cmdline").find(word) == name.npos) continue;
    if (read_text(entry.path() / "environ").find(variable) != name.npos) return std::stoi(name);
  }
  return 0;
}

void signal_rank(const std::string& word, int rank, int signal) {
  if (const pid_t process = process_of_rank(word, rank); process > 0) ::kill(process, signal);
}

std::filesystem::path odd_rank(const TempFolder& folder, int rank, const std::string& environment,
                               const std::string& arguments) {
  const std::filesystem::path script =
      folder.write("odd_rank.sh", "#!/bin/sh\nif [ \"$OMPI_COMM_WORLD_RANK\" = " + std::to_string(rank) +
                                      " ]; then\n  exec env " + environment + " " + program().string() + " \"$@\" " +
                                      arguments + "\nfi\nexec " + program().string() + " \"$@\"\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  return script;
}

}  // namespace inlay::testing
