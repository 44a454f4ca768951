#include <algorithm>

#include <fmt/format.h>

#include "cli/commands.h"

namespace inlay::cli {

namespace {

// The command that a command line is about, as far as its words name one.
const CLI::App& command_of(const CLI::App& program, const std::vector<std::string>& arguments) {
  const CLI::App* app = &program;
  for (const std::string& word : arguments) {
    const auto below = app->get_subcommands([&](const CLI::App* command) { return command->get_name() == word; });
    if (!below.empty()) app = below.front();
  }
  return *app;
}

// "export gguf"; empty of the program itself.
std::string name_of(const CLI::App& command) {
  if (command.get_parent() == nullptr) return {};
  const std::string before = name_of(*command.get_parent());
  return before.empty() ? command.get_name() : before + " " + command.get_name();
}

// "model: a folder or a name" of an option that is not there; empty where the parser speaks of something else.
std::string meaning_of(const CLI::App& command, const std::string& said) {
  for (const CLI::Option* option : command.get_options()) {
    if (said == option->get_name() + " is required") {
      return fmt::format("{} is missing: {}", option->get_name(), option->get_description());
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> without_help_word(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.push_back("--help");
  return arguments;
}

std::string explain(const CLI::ParseError& error, const CLI::App& program, const std::vector<std::string>& arguments) {
  const CLI::App& command = command_of(program, arguments);
  const std::string name = name_of(command);
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  std::string what = error.what();
  if (kind == CLI::ExitCodes::RequiredError) {
    if (const auto all = command.get_subcommands([](const CLI::App*) { return true; }); !all.empty()) {
      return fmt::format("{} needs the name of a command; inlay {} --help lists them", name, name);
    }
    if (const std::string missing = meaning_of(command, what); !missing.empty()) what = missing;
  } else if (kind == CLI::ExitCodes::ExtrasError) {
    const std::vector<std::string> rest = command.remaining();
    const std::string word = rest.empty() ? "" : rest.front();
    const bool asks = command.get_option_no_throw("--prompt") != nullptr;
    what = word.starts_with('-')
               ? fmt::format("{} is not an option", word)
               : fmt::format("'{}' is one argument too many{}", word, asks ? ": a prompt is given by --prompt" : "");
  } else if (kind == CLI::ExitCodes::ArgumentMismatch) {
    what = what.substr(0, what.find(':')) + " needs a value";
  } else if (kind == CLI::ExitCodes::ConversionError) {
    const std::size_t option = what.find("--"), value = what.find(" = ");
    if (option != what.npos && value != what.npos && option < value) {
      what =
          fmt::format("{}: expected a number, got '{}'", what.substr(option, value - option), what.substr(value + 3));
    }
  }
  if (name.empty()) return fmt::format("{}; inlay --help says more", what);
  return fmt::format("{}: {}; inlay {} --help says more", name, what, name);
}

}  // namespace inlay::cli
