#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "cli/commands.h"
#include "core/text.h"

namespace inlay::cli {

namespace {

// Commands as other programs call them; empty: there is none of the kind.
std::optional<std::string> called_elsewhere(const std::string& word) {
  static const std::map<std::string_view, std::string_view> names = {
      {"run", "train"},          {"finetune", "train"},   {"fine-tune", "train"},   {"sft", "train"},
      {"evaluate", "eval"},      {"convert", "export"},   {"quantize", "export"},   {"infer", "generate"},
      {"inference", "generate"}, {"predict", "generate"}, {"version", "--version"}, {"serve", ""},
  };
  const auto at = names.find(word);
  return at == names.end() ? std::nullopt : std::optional<std::string>(at->second);
}

// What nothing is called, and what it may have meant.
std::string unknown(const std::string& word, const char* kind, const CLI::App& app,
                    const std::vector<std::string>& known) {
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  const bool command = app.get_parent() == nullptr && !word.starts_with('-');
  const std::string found = (command ? called_elsewhere(word) : std::nullopt).value_or(nearest(word, candidates));
  const std::string place = app.get_parent() == nullptr ? "" : app.get_name();
  return fmt::format("{} is not {}{}; {}", word, kind, place.empty() ? "" : " of " + place,
                     found.empty() ? fmt::format("inlay {}--help lists them", place.empty() ? "" : place + " ")
                                   : fmt::format("did you mean {}?", found));
}

}  // namespace

std::string unknown_word(const CLI::App& program, const std::vector<std::string>& arguments) {
  const CLI::App* app = &program;
  for (const std::string& word : arguments) {
    const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
    if (word.starts_with("--")) {
      if (app->get_allow_extras()) continue;
      const std::string name = word.substr(0, word.find('='));
      std::vector<std::string> known;
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
      }
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      return unknown(name, "an option", *app, known);
    }
    if (word.starts_with('-') || commands.empty()) continue;
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : commands) {
      known.push_back(command->get_name());
      if (command->get_name() == word) next = command;
    }
    if (next == nullptr) return unknown(word, "a command", *app, known);
    app = next;
  }
  return {};
}

}  // namespace inlay::cli
