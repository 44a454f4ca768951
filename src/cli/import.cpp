#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "io/paths.h"
#include "options/import.h"

namespace inlay::cli {

namespace {

struct ImportArguments {
  std::string from, output;
  std::vector<std::string> rest;  // of another program's command line
  bool quiet = false;
};

int run(const ImportArguments& arguments) {
  const std::vector<std::string>& rest = arguments.rest;
  options::Imported imported;
  std::optional<std::filesystem::path> to;
  if (!arguments.output.empty()) to = std::filesystem::path(arguments.output).parent_path();
  if (arguments.from == "mini_trainer") {
    if (rest.empty()) user_error("inlay import mini_trainer -- ARGUMENTS: give its command line after two dashes");
    imported = options::import_mini_trainer(rest, to);
  } else if (arguments.from == "axolotl" && !io::exists("axolotl") && rest.size() == 1) {
    return run({.from = rest.front(), .output = arguments.output, .rest = {}, .quiet = arguments.quiet});
  } else {
    if (!rest.empty()) user_error("'{}': only the name of a file is expected", rest.front());
    imported = options::import_axolotl(io::read_file(arguments.from, std::size_t{16} << 20), arguments.from, to);
  }
  if (!arguments.quiet) fmt::print(stderr, "{}", imported.remarks());
  if (arguments.output.empty()) {
    fmt::print("{}", imported.yaml);
    return 0;
  }
  if (io::exists(arguments.output)) user_error("{}: already exists; choose another name", arguments.output);
  io::write_file_atomic(arguments.output, imported.yaml);
  fmt::print(stderr, "{} is written; to see what it would do: inlay plan {}\n", arguments.output,
             shell_quoted(arguments.output));
  return 0;
}

}  // namespace

void add_import(Program& program) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = program.app.add_subcommand(
      "import", "Translate a configuration of axolotl, or a command line of mini_trainer, and say what was left out");
  command->add_option("from", arguments->from, "axolotl's YAML file, or mini_trainer with its arguments after --")
      ->required();
  command->add_option("arguments", arguments->rest, "mini_trainer's arguments, after --");
  command->add_option("-o,--output", arguments->output, "New file to write (default: standard output)");
  command->add_flag("--quiet", arguments->quiet, "Print errors and the result only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    std::vector<std::string> extras = command->remaining();
    std::erase(extras, "--");
    if (!extras.empty()) {
      if (arguments->from != "mini_trainer") {
        command->allow_extras(false);
        throw CLI::ExtrasError(command->get_name(), extras);
      }
      user_error("'{}': two dashes come before mini_trainer's arguments: inlay import mini_trainer -- {} ...",
                 extras.front(), extras.front());
    }
    program.action = [arguments] { return run(*arguments); };
  });
}

}  // namespace inlay::cli
