#include <algorithm>

#include <fmt/format.h>

#include "cli/checks.h"
#include "cli/commands.h"
#include "core/text.h"

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

// The option that the parser speaks of: its messages name it first, or behind "Could not convert: ".
const CLI::Option* option_of(const CLI::App& command, std::string_view said) {
  constexpr std::string_view conversion = "Could not convert: ";
  if (said.starts_with(conversion)) said.remove_prefix(conversion.size());
  const std::string_view name = said.substr(0, said.find_first_of(": "));
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() == name) return option;
  }
  return nullptr;
}

// "{a,b}" is what the parser says of names.
std::string names_of(std::string_view set) {
  std::vector<std::string> names;
  for (std::size_t at = 1; at < set.size();) {
    const std::size_t end = set.find_first_of(",}", at);
    names.emplace_back(set.substr(at, end - at));
    at = end == set.npos ? set.size() : end + 1;
  }
  return any_of(names);
}

// "a whole number from 0 to 3", by the option's type and the descriptions of its checks: what the parser itself says of
// them differs from version to version, and has the limits of a double in it. 300 digits long.
std::string expected_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t colon = type.find(':');
  const std::string_view check = colon == type.npos ? std::string_view() : std::string_view(type).substr(colon + 1);
  const bool whole = type.starts_with("INT") || type.starts_with("UINT");
  const std::string number = whole ? "a whole number" : "a number";
  if (check.starts_with('{')) return names_of(check);
  if (check == "POSITIVE") return number + (whole ? " of at least 1" : " above 0");
  if (check == "NONNEGATIVE" || (check.empty() && type.starts_with("UINT"))) return number + " of at least 0";
  const std::size_t from = check.find('['), to = check.find(" - "), end = check.find(']');
  if (from == check.npos || to == check.npos || end == check.npos) return number;
  return fmt::format("{} from {} to {}", number, check.substr(from + 1, to - from - 1),
                     check.substr(to + 3, end - to - 3));
}

// Of an option that has a value which it does not take, or as many as it does not take.
std::string wrong_value(const CLI::Option& option) {
  const std::string& name = option.get_name();
  if (option.get_items_expected_max() == 0) return name + " takes no value";
  const std::vector<std::string>& given = option.results();
  if (given.size() > 1 && option.get_items_expected_max() == 1) {
    return fmt::format("{} is given {} times; expected once", name, given.size());
  }
  return fmt::format("{}: expected {}, got '{}'", name, expected_by(option), join(given, ","));
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
  if (kind == CLI::ExitCodes::RequiredError && name.empty()) {
    const auto option = std::ranges::find_if(arguments, [](const std::string& word) { return word.starts_with('-'); });
    what = option == arguments.end() ? "the name of a command is missing" : *option + " is not an option";
  } else if (kind == CLI::ExitCodes::RequiredError) {
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
               : fmt::format("'{}' is one argument too many{}", word, asks ? ": a prompt is given with --prompt" : "");
  } else if (const CLI::Option* option = option_of(command, what); option != nullptr) {
    const bool ours = kind == CLI::ExitCodes::ValidationError && what.find(": expected ") != what.npos;
    if (kind == CLI::ExitCodes::ArgumentMismatch && option->results().size() < 2) {
      what = option->get_name() + " needs a value";
    } else if (!ours) {
      what = wrong_value(*option);
    }
  }
  if (name.empty()) return fmt::format("{}; inlay --help says more", what);
  return fmt::format("{}: {}; inlay {} --help says more", name, what, name);
}

std::string switch_with_value(const CLI::App& program, const std::vector<std::string>& arguments) {
  const CLI::App* app = &program;
  for (const std::string& word : arguments) {
    if (word == "--") break;  // what follows is another program's
    const auto commands = app->get_subcommands([&](const CLI::App* command) { return command->get_name() == word; });
    if (!commands.empty()) app = commands.front();
    const std::size_t equals = word.find('=');
    if (!word.starts_with("--") || equals == word.npos) continue;
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    const CLI::Option* const option = app->get_option_no_throw(name);
    if (option == nullptr || option->get_items_expected_max() > 0 || value == "true" || value == "false") continue;
    return fmt::format("{0}: {1} takes no value, got '{2}'; inlay {0} --help says more", name_of(*app), name, value);
  }
  return {};
}

}  // namespace inlay::cli
