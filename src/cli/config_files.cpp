#include <filesystem>

#include "cli/commands.h"
#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "io/paths.h"
#include "options/schema.h"

namespace inlay::cli {

void add_config_schema(Program& program) {
  CLI::App* command = program.app.add_subcommand(
      "config-schema", "JSON Schema of the configuration, for editors that complete and check it");
  command->callback([&program] {
    program.action = [] {
      fmt::print("{}", options::options_schema());
      return 0;
    };
  });
}

void add_init_config(Program& program) {
  auto file = std::make_shared<std::string>("run.yaml");
  CLI::App* command =
      program.app.add_subcommand("init-config", "Write a configuration to start from: every key, explained");
  command->add_option("file", *file, "New file to write (default: run.yaml); - is standard output");
  command->callback([&program, file] {
    program.action = [file] {
      if (*file == "-") {
        fmt::print("{}", options::options_template());
        return 0;
      }
      if (io::exists(*file)) user_error("{}: already exists; choose another name", *file);
      io::write_file_atomic(*file, options::options_template());
      fmt::print("{}: fill in the keys that have no value, then: inlay train {}\n", *file, shell_quoted(*file));
      return 0;
    };
  });
}

}  // namespace inlay::cli
