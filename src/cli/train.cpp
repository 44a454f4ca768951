#include "cli/commands.h"
#include "core/interrupt.h"
#include "train/run.h"

namespace inlay::cli {

void add_train(Program& program) {
  struct Arguments {
    std::string config;
    bool resume = false, quiet = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("train", "Train a model as described in a YAML file; --key value overrides a key");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_flag("--resume", arguments->resume, "Continue from the latest checkpoint in output_dir");
  command->add_flag("--quiet", arguments->quiet, "Print errors only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] {
      Console console(arguments->quiet);
      const options::TrainOptions options =
          options::load_options(arguments->config, parse_overrides(command->remaining()));
      install_interrupt_handler();
      if (train::run_training(options, arguments->resume, console) == train::RunEnd::interrupted) {
        return interrupt_exit_code();
      }
      console.line(fmt::format("to see how it went: inlay report {}", options.output_dir));
      return 0;
    };
  });
}

}  // namespace inlay::cli
