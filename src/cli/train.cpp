#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "io/file.h"
#include "parallel/processes.h"
#include "train/run.h"
#include "train/session.h"

namespace inlay::cli {

namespace {

struct TrainArguments {
  std::string config, processes;
  HubArguments hub;
  bool resume = false, quiet = false, json = false;
};

// All processes have the exit code of the signal that came to one of them: mpirun takes that of whichever ends first.
int shared_exit_code(parallel::Communicator& world) {
  const std::string mine = interrupt_requested() ? std::to_string(interrupt_exit_code()) : "";
  for (const std::string& code : world.exchange(mine, "the signal")) {
    if (!code.empty()) return std::stoi(code);
  }
  return interrupt_exit_code();
}

// Standard output as a stream of JSON: a line for each of metrics.jsonl as it is written, and the summary at the end.
// Whoever reads it may go: the run goes on without.
class JsonOutput {
 public:
  explicit JsonOutput(Console& console) : console_(console) { std::signal(SIGPIPE, SIG_IGN); }

  void print(const std::string& line) {
    if (closed_) return;
    closed_ = std::fputs((line + "\n").c_str(), stdout) < 0 || std::fflush(stdout) != 0;
    if (closed_) console_.line("nobody reads standard output any more: the run goes on without --json");
  }

 private:
  Console& console_;
  bool closed_ = false;
};

int run(const TrainArguments& arguments, const options::Overrides& overrides) {
  install_interrupt_handler();  // first: mpirun may pass a signal on while the processes still find each other
  const std::shared_ptr<parallel::Communicator> world = parallel::join_processes();
  Console console(arguments.quiet || !world->leads());
  options::TrainOptions options;
  together(*world, "reading the configuration", [&] {
    options = options::load_options(arguments.config, overrides, options::Needed::all,
                                    arguments.hub.access(arguments.quiet || !world->leads()));
  });
  for (const std::string& note : options.notes) console.line(note);
  parallel::set_watchdog_timeout(options.parallel.timeout);
  const Device device = train::resolve_machine(options.device, options.dtype).device;
  parallel::agree_on(*world, {{"device", std::string(name_of(device))}});
  const auto communicator =
      parallel::take_places(world, device, options.deterministic, [&](std::string_view note) { console.line(note); });
  std::optional<JsonOutput> json;
  if (arguments.json && world->leads()) json.emplace(console);
  const auto observe = [&](const std::string& line) {
    if (json) json->print(line);
  };
  if (train::run_training(options, arguments.resume, console, communicator, observe) == train::RunEnd::interrupted) {
    return shared_exit_code(*world);
  }
  if (json) {
    const std::filesystem::path summary = std::filesystem::path(options.output_dir) / "summary.json";
    json->print(
        nlohmann::ordered_json{{"summary", nlohmann::ordered_json::parse(io::read_file(summary, 1 << 20))}}.dump());
  }
  console.line(fmt::format("to see how it went: inlay report {}", shell_quoted(options.output_dir)));
  return 0;
}

}  // namespace

void add_train(Program& program) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command =
      program.app.add_subcommand("train", "Train a model as described in a YAML file; --key value overrides a key");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--processes", arguments->processes,
                      "Run as this many processes on this machine, started by mpirun; auto: one per GPU");
  command->add_flag("--resume", arguments->resume, "Continue from the latest checkpoint in output_dir");
  arguments->hub.add_to(*command);
  command->add_flag("--quiet", arguments->quiet, "Print errors only");
  command->add_flag("--json", arguments->json,
                    "Print every line of metrics.jsonl to standard output, as it is written, and the summary");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.several_processes = true;
    program.action = [&program, command, arguments] {
      if (!arguments->processes.empty()) {
        if (const auto code = run_as_processes(arguments->processes, program.arguments)) return *code;
      }
      return run(*arguments, parse_overrides(*command));
    };
  });
}

}  // namespace inlay::cli
