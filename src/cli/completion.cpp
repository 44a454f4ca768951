#include <algorithm>

#include <fmt/format.h>

#include "cli/commands.h"
#include "options/train_options.h"

namespace inlay::cli {

namespace {

// What can follow one command: made from the program's own declarations, so that nothing is forgotten here.
struct Choice {
  std::string name, meaning;
  bool takes_value = false;
};
struct Node {
  std::vector<std::string> path;  // "bench", "attention"; empty for the program itself
  std::vector<Choice> commands, options;
};

void collect(const CLI::App& app, const std::vector<std::string>& path, std::vector<Node>& nodes) {
  Node node{.path = path, .commands = {}, .options = {}};
  for (const CLI::Option* option : app.get_options()) {
    const bool takes_value = option->get_items_expected_max() > 0;
    for (const std::string& name : option->get_lnames()) {
      node.options.push_back({"--" + name, option->get_description(), takes_value});
    }
  }
  if (app.get_allow_extras()) {  // keys of the configuration
    for (const options::OptionKey& key : options::option_keys()) {
      node.options.push_back({"--" + key.name, key.meaning, true});
    }
  }
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands) node.commands.push_back({command->get_name(), command->get_description()});
  nodes.push_back(std::move(node));
  for (const CLI::App* command : commands) {
    std::vector<std::string> below = path;
    below.push_back(command->get_name());
    collect(*command, below, nodes);
  }
}

std::vector<Node> nodes_of(const CLI::App& app) {
  std::vector<Node> nodes;
  collect(app, {}, nodes);
  return nodes;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

// In single quotes, as bash and zsh read them.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

// The same for fish, where a backslash works within single quotes.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string place_of(const Node& node) { return node.path.empty() ? "inlay" : "inlay " + joined(node.path, " "); }

// The cases of a walk along the words typed, which bash and zsh share.
std::string walk_cases(const std::vector<Node>& nodes) {
  std::string cases;
  for (const Node& node : nodes) {
    if (!node.path.empty()) cases += (cases.empty() ? "" : "|") + shell_quoted(place_of(node));
  }
  return cases;
}

std::string bash_script(const std::vector<Node>& nodes) {
  std::string out =
      "# Completion of inlay for bash: source it, or put it into ~/.local/share/bash-completion/completions/inlay\n"
      "_inlay() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} place=inlay word commands= options=\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$place $word\" in\n"
      "      " +
      walk_cases(nodes) +
      ") place=\"$place $word\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case $place in\n";
  const auto names = [](const std::vector<Choice>& choices) {
    std::vector<std::string> list;
    for (const Choice& choice : choices) list.push_back(choice.name);
    return shell_quoted(joined(list, " "));
  };
  for (const Node& node : nodes) {
    out += fmt::format("    {}) commands={} options={} ;;\n", shell_quoted(place_of(node)), names(node.commands),
                       names(node.options));
  }
  return out +
         "  esac\n"
         "  COMPREPLY=()\n"
         "  if [[ $current == -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
         "  elif [[ -n $commands ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$current\")\n"
         "  fi  # nothing of ours: file names, by -o default\n"
         "}\n"
         "complete -o default -F _inlay inlay\n";
}

std::string zsh_script(const std::vector<Node>& nodes) {
  std::string out =
      "#compdef inlay\n"
      "# Completion of inlay for zsh: source it after compinit, or put it as _inlay into a folder of $fpath\n"
      "_inlay() {\n"
      "  local place=inlay word\n"
      "  local -a commands options\n"
      "  for word in \"${(@)words[2,CURRENT-1]}\"; do\n"
      "    case \"$place $word\" in\n"
      "      " +
      walk_cases(nodes) +
      ") place=\"$place $word\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case $place in\n";
  const auto list = [](const std::vector<Choice>& choices) {
    std::string items;
    for (const Choice& choice : choices) {
      items += (items.empty() ? "" : " ") + shell_quoted(choice.name + ":" + choice.meaning);
    }
    return items;
  };
  for (const Node& node : nodes) {
    out += fmt::format("    {})\n      commands=({})\n      options=({}) ;;\n", shell_quoted(place_of(node)),
                       list(node.commands), list(node.options));
  }
  return out +
         "  esac\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    _describe -o option options\n"
         "  elif (( $#commands )); then\n"
         "    _describe command commands\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "if [[ $funcstack[1] == _inlay ]]; then _inlay \"$@\"; else compdef _inlay inlay; fi\n";
}

std::string fish_script(const std::vector<Node>& nodes) {
  std::string out =
      "# Completion of inlay for fish: put it into ~/.config/fish/completions/inlay.fish\n"
      "function __inlay_at --description 'whether the words typed lead to this command'\n"
      "  set -l words (commandline -opc)\n"
      "  set -l place inlay\n"
      "  for word in $words[2..-1]\n"
      "    switch \"$place $word\"\n"
      "      case";
  for (const Node& node : nodes) {
    if (!node.path.empty()) out += " " + fish_quoted(place_of(node));
  }
  out +=
      "\n"
      "        set place \"$place $word\"\n"
      "    end\n"
      "  end\n"
      "  test \"$place\" = \"$argv\"\n"
      "end\n";
  for (const Node& node : nodes) {
    const std::string begin = "complete -c inlay -n " + fish_quoted("__inlay_at " + place_of(node));
    if (!node.commands.empty()) out += begin + " -f\n";
    for (const Choice& command : node.commands) {
      out += fmt::format("{} -a {} -d {}\n", begin, command.name, fish_quoted(command.meaning));
    }
    for (const Choice& option : node.options) {
      out += fmt::format("{} -l {}{} -d {}\n", begin, option.name.substr(2), option.takes_value ? " -r" : "",
                         fish_quoted(option.meaning));
    }
  }
  return out;
}

}  // namespace

void add_completion(Program& program) {
  CLI::App* command = program.app.add_subcommand("completion", "Print a completion script for a shell");
  command->require_subcommand(1);
  using Script = std::string (*)(const std::vector<Node>&);
  const std::pair<const char*, Script> shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
  for (const auto& [shell, script] : shells) {
    command->add_subcommand(shell, fmt::format("For {}; the first lines of the script say where to put it", shell))
        ->callback([&program, script = script] {
          program.action = [&program, script] {
            fmt::print("{}", script(nodes_of(program.app)));
            return 0;
          };
        });
  }
}

}  // namespace inlay::cli
