#include "study/continual.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "core/interrupt.h"
#include "core/processors.h"
#include "core/text.h"
#include "study/record.h"
#include "study/results.h"

namespace inlay::cli {

namespace {

struct ContinualArguments {
  std::string config, study;
  bool resume = false, quiet = false, json = false, report_only = false, helping = false;
  int jobs = 1;
};

// A process that does sequences of a study beside this one and others like it.
pid_t start_helper(const ContinualArguments& arguments, const std::string& study) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) user_error("/proc/self/exe cannot be read: {}", error.message());
  std::vector<std::string> words = {program, "continual", arguments.config, "--helping"};
  if (!study.empty()) words.insert(words.end(), {"--study", study});
  if (arguments.quiet) words.emplace_back("--quiet");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string threads = std::to_string(std::max(1, granted_processors() / arguments.jobs));
  const pid_t child = ::fork();
  if (child < 0) user_error("--jobs: a process cannot be started: {}", std::strerror(errno));
  if (child > 0) return child;
  ::setpgid(0, 0);  // Ctrl-C comes to the first process, which passes it on
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::setenv("OMP_NUM_THREADS", threads.c_str(), 0);  // unless the user has said how many
  if (const int nothing = ::open("/dev/null", O_RDONLY); nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execv(argv[0], argv.data());
  std::_Exit(127);
}

// Starts them all and waits until the last has ended. The sequences are theirs to share out (study/continual.h).
train::RunEnd run_helpers(const ContinualArguments& arguments, const std::string& study) {
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, nobody hears how a process has ended
  std::set<pid_t> running;
  for (int i = 0; i < arguments.jobs; ++i) running.insert(start_helper(arguments, study));
  bool asked = false;
  std::optional<int> failed;
  while (!running.empty()) {
    if (interrupt_requested() && !std::exchange(asked, true)) {
      for (const pid_t process : running) ::kill(process, SIGTERM);
    }
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    running.erase(ended);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code != 0 && !asked) failed = code;
  }
  if (failed) {
    user_error("a process of --jobs ended with {}; what the others have done is saved, and --resume does the rest",
               *failed);
  }
  return asked ? train::RunEnd::interrupted : train::RunEnd::finished;
}

// All studies of the file, or the one that was named.
std::vector<study::ContinualOptions> chosen_studies(const ContinualArguments& arguments) {
  std::vector<study::ContinualOptions> studies = study::load_studies(arguments.config);
  if (arguments.study.empty()) return studies;
  std::vector<std::string> names;
  for (study::ContinualOptions& study : studies) {
    if (study.name == arguments.study) return {std::move(study)};
    if (!study.name.empty()) names.push_back(study.name);
  }
  if (names.empty()) user_error("--study: {} holds a single study", arguments.config);
  user_error("--study: {} holds {}, not '{}'", arguments.config, join(names, ", "), arguments.study);
}

// What has come out of the studies, with the page of each written anew where nothing else was to be done.
void show_results(const ContinualArguments& arguments, const std::vector<study::ContinualOptions>& studies) {
  nlohmann::ordered_json all;
  for (const study::ContinualOptions& options : studies) {
    const study::Study study = study::read_study(options);
    const study::Analysis analysis = study::analyse(study);
    if (arguments.report_only) study::write_report(options, study, analysis);
    if (!arguments.json) {
      if (!options.name.empty()) fmt::print("{}study {}\n", &options == &studies.front() ? "" : "\n", options.name);
      fmt::print("{}\nthe report is {}/report.html\n", study::results_table(study, analysis), options.output_dir);
    } else if (options.name.empty()) {
      fmt::print("{}", study::results_json(study, analysis));
    } else {
      all[options.name] = nlohmann::ordered_json::parse(study::results_json(study, analysis));
    }
  }
  if (!all.empty()) fmt::print("{}\n", all.dump(2));
}

int run(const ContinualArguments& arguments) {
  std::vector<study::ContinualOptions> studies = chosen_studies(arguments);
  if (arguments.report_only) {
    if (std::ranges::any_of(studies, study::has_study)) {  // of several, those after it may be yet to come
      std::erase_if(studies, [](const auto& study) { return !study::has_study(study); });
    }
    for (const study::ContinualOptions& study : studies) study::check_study(study);
  } else {
    install_interrupt_handler(arguments.helping ? Heard::silently : Heard::aloud);
    study::ContinualWork work{
        .resume = arguments.resume, .quiet = arguments.quiet, .helping = arguments.helping, .helpers = {}};
    if (arguments.jobs > 1) work.helpers = [&](const std::string& study) { return run_helpers(arguments, study); };
    if (study::run_continual(studies, work) == train::RunEnd::interrupted) return interrupt_exit_code();
    if (arguments.helping) return 0;
  }
  show_results(arguments, studies);
  return 0;
}

}  // namespace

void add_continual(Program& program) {
  auto arguments = std::make_shared<ContinualArguments>();
  CLI::App* command = program.app.add_subcommand(
      "continual", "Teach tasks in sequence by several methods, and show what each learned and forgot");
  command->add_option("config", arguments->config, "YAML file")->required();
  CLI::Option* resume = command->add_flag("--resume", arguments->resume, "Complete the study in output_dir");
  command
      ->add_option("--jobs", arguments->jobs,
                   "Run this many sequences at once, each in a process of its own: for small models, which leave most "
                   "of the device idle")
      ->check(whole(1, 256));
  command->add_option("--study", arguments->study, "Only the study of this name, of a file with several");
  command->add_flag("--helping", arguments->helping)->group("");  // a process that --jobs has started
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->add_flag("--json", arguments->json, "Print results.json instead of the table");
  command->add_flag("--report-only", arguments->report_only, "Report what is done so far; train and evaluate nothing")
      ->excludes(resume);
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
