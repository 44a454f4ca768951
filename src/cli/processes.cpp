#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "backend/cuda/context.h"
#include "cli/commands.h"
#include "core/error.h"
#include "parallel/processes.h"

namespace inlay::cli {

namespace {

int count_of(const std::string& processes) {
  if (processes == "auto") {
    const int gpus = backend::cuda::device_count();
    if (gpus == 0) user_error("--processes auto is one per GPU, but there is no GPU here; give a number");
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
  if (child < 0) user_error("a process for mpirun cannot be started: {}", std::strerror(errno));
  if (child > 0) return child;
  // A group of its own: Ctrl-C comes here first. mpirun itself would kill the processes a second after it.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  if (const int nothing = ::open("/dev/null", O_RDONLY); nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execvp(argv[0], argv.data());
  std::_Exit(127);
}

// The parent of a process; 0 where it is gone.
pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  // "PID (NAME) STATE PARENT ...", where the name may hold anything.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream rest(text.substr(end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

bool descends_from(pid_t ancestor, pid_t process) {
  for (pid_t at = parent_of(process); at > 1; at = parent_of(at)) {
    if (at == ancestor) return true;
  }
  return false;
}

// Asks the processes of the run to write a checkpoint and end; says whether there are any yet. They are asked
// themselves, whatever stands between (mpirun may be a script): mpirun passes a signal on to those that it has started
// by then, be it none, and some builds of it pass on nothing at all.
bool ask_to_end(pid_t mpirun) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  bool found = false;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    pid_t process = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong != std::errc() || rest != name.data() + name.size()) continue;
    if (std::filesystem::read_symlink(entry.path() / "exe", error) != program || !descends_from(mpirun, process))
      continue;
    found = ::kill(process, SIGUSR1) == 0 || found;
  }
  return found;
}

// The file in which the processes leave their exit code (parallel/processes.h), for as long as they run.
class ExitCodeFile {
 public:
  ExitCodeFile() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "inlay-exit-XXXXXX").string();
    const int file = error ? -1 : ::mkstemp(name.data());
    if (file < 0) return;  // then mpirun has more to say
    ::close(file);
    path_ = name;
    ::setenv("INLAY_EXIT_CODE_FILE", path_.c_str(), 1);
  }
  ~ExitCodeFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  ExitCodeFile(const ExitCodeFile&) = delete;
  ExitCodeFile& operator=(const ExitCodeFile&) = delete;

  // 0: they have left none.
  int code() const {
    int code = 0;
    std::ifstream(path_) >> code;
    return code;
  }

 private:
  std::string path_;
};

}  // namespace

std::optional<int> run_as_processes(const std::string& processes, std::vector<std::string> arguments) {
  const int count = count_of(processes);
  if (parallel::place_in_environment().size > 1) {
    user_error("--processes starts mpirun, but this is already one of mpirun's processes; leave it out");
  }
  parallel::refuse_other_launchers();  // each of its processes would start mpirun
  if (count == 1) return std::nullopt;
  drop_processes(arguments);
  const ExitCodeFile left;
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGCHLD, SIG_DFL);  // whoever started this may ignore it: then nobody, mpirun included, hears of an end
  const pid_t mpirun = start(mpirun_command(count, arguments), signals);
  int asked_by = 0, status = 0;
  bool delivered = true;  // what was asked for
  int tries = 0;
  while (::waitpid(mpirun, &status, WNOHANG) == 0) {
    constexpr timespec soon{0, 50'000'000};
    const int signal = delivered ? ::sigwaitinfo(&signals, nullptr) : ::sigtimedwait(&signals, nullptr, &soon);
    if (signal > 0 && signal != SIGCHLD) {
      if (asked_by != 0) ::kill(mpirun, SIGTERM);  // who asks twice means at once
      delivered = asked_by != 0;
      asked_by = signal;
    }
    if (delivered) continue;
    delivered = ask_to_end(mpirun);
    // None can be seen after ten seconds: perhaps they never will be, so mpirun shall pass it on. It may have none to
    // pass it to either (a slow machine), so the search goes on.
    constexpr int patience = 200;
    if (!delivered && ++tries == patience) ::kill(mpirun, SIGUSR1);
  }
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0) code = left.code();
  if (code == 127) user_error("--processes needs mpirun, which is not on the PATH (Debian: openmpi-bin)");
  return code != 0 && asked_by != 0 ? 128 + asked_by : code;
}

}  // namespace inlay::cli
