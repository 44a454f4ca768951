#include "study/continual.h"

#include "cli/commands.h"
#include "core/interrupt.h"
#include "study/record.h"
#include "study/results.h"

namespace inlay::cli {

namespace {

struct ContinualArguments {
  std::string config;
  bool resume = false, quiet = false, json = false, report_only = false;
};

int run(const ContinualArguments& arguments) {
  const study::ContinualOptions options = study::load_continual_options(arguments.config);
  if (arguments.report_only) {
    study::check_study(options);
  } else {
    install_interrupt_handler();
    if (study::run_continual(options, arguments.resume, arguments.quiet) == train::RunEnd::interrupted) {
      return interrupt_exit_code();
    }
  }
  const study::Study study = study::read_study(options);
  const study::Analysis analysis = study::analyse(study);
  if (arguments.report_only) study::write_report(options, study, analysis);
  fmt::print("{}", arguments.json ? study::results_json(study, analysis) : study::results_table(study, analysis));
  if (!arguments.json) fmt::print("\nthe report is {}/report.html\n", options.output_dir);
  return 0;
}

}  // namespace

void add_continual(Program& program) {
  auto arguments = std::make_shared<ContinualArguments>();
  CLI::App* command = program.app.add_subcommand(
      "continual", "Teach tasks in sequence by several methods, and show what each learned and forgot");
  command->add_option("config", arguments->config, "YAML file")->required();
  CLI::Option* resume = command->add_flag("--resume", arguments->resume, "Complete the study in output_dir");
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->add_flag("--json", arguments->json, "Print results.json instead of the table");
  command->add_flag("--report-only", arguments->report_only, "Report what is done so far; train and evaluate nothing")
      ->excludes(resume);
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
