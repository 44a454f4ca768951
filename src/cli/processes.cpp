#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "backend/cuda/context.h"
#include "cli/commands.h"
#include "core/error.h"
#include "parallel/processes.h"

namespace inlay::cli {

namespace {

int count_of(const std::string& processes) {
  if (processes == "auto") {
    const int gpus = backend::cuda::device_count();
    if (gpus == 0) user_error("--processes auto is one per GPU, and there is no GPU here; give a number");
    return gpus;
  }
  int count = 0;
  const auto [rest, error] = std::from_chars(processes.data(), processes.data() + processes.size(), count);
  if (error != std::errc() || rest != processes.data() + processes.size() || count < 1) {
    user_error("--processes: expected a number of at least 1 or auto, got '{}'", processes);
  }
  return count;
}

void drop_processes(std::vector<std::string>& arguments) {
  for (auto at = arguments.begin(); at != arguments.end();) {
    if (*at == "--processes") {
      at = arguments.erase(at, std::min(at + 2, arguments.end()));
    } else if (at->starts_with("--processes=")) {
      at = arguments.erase(at);
    } else {
      ++at;
    }
  }
}

std::vector<std::string> mpirun_command(int count, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) user_error("/proc/self/exe cannot be read: {}", error.message());
  // The processes share out the cores themselves (parallel/placement.h), and so many are wanted, few cores or not.
  std::vector<std::string> command = {"mpirun", "-n", std::to_string(count), "--bind-to", "none", "--oversubscribe"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");  // who is root here has decided so before
  command.push_back(program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

pid_t start(const std::vector<std::string>& command, const sigset_t& blocked) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) user_error("a process for mpirun cannot be made: {}", std::strerror(errno));
  if (child > 0) return child;
  // A group of its own: Ctrl-C comes here first. mpirun itself would kill the processes a second after it.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  if (const int nothing = ::open("/dev/null", O_RDONLY); nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execvp(argv[0], argv.data());
  std::_Exit(127);
}

}  // namespace

std::optional<int> run_as_processes(const std::string& processes, std::vector<std::string> arguments) {
  const int count = count_of(processes);
  if (parallel::place_in_environment().size > 1) {
    user_error("--processes starts mpirun, and this is one of mpirun's processes already; leave it out");
  }
  if (count == 1) return std::nullopt;
  drop_processes(arguments);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const pid_t mpirun = start(mpirun_command(count, arguments), signals);
  int asked_by = 0, status = 0;
  for (int signal = 0; ::waitpid(mpirun, &status, WNOHANG) == 0;) {
    if (::sigwait(&signals, &signal) != 0 || signal == SIGCHLD) continue;
    // mpirun passes SIGUSR1 on to the processes, which write a checkpoint and end. Who asks twice means at once.
    ::kill(mpirun, asked_by == 0 ? SIGUSR1 : SIGTERM);
    asked_by = signal;
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 127) user_error("--processes needs mpirun, which is not on the PATH (Debian: openmpi-bin)");
  return code != 0 && asked_by != 0 ? 128 + asked_by : code;
}

}  // namespace inlay::cli
