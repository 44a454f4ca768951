#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

// One file a subcommand. Each adds itself to the program and leaves behind what to do when it is the one that was
// called; the returned value is the exit code.
namespace inlay::cli {

using Action = std::function<int()>;

struct Program {
  CLI::App app{"Fine-tunes language models natively: Hugging Face checkpoints in and out, no Python", "inlay"};
  std::vector<std::string> arguments;  // the whole command line, without the program's name
  Action action;
  bool several_processes = false;  // the command can be one of several; others are refused under mpirun
};

void add_train(Program& program);
void add_eval(Program& program);
void add_info(Program& program);
void add_plan(Program& program);
void add_grad(Program& program);
void add_init(Program& program);
void add_generate(Program& program);
void add_chat(Program& program);
void add_merge(Program& program);
void add_export(Program& program);
void add_bench(Program& program);
void add_continual(Program& program);
void add_tokenize(Program& program);
void add_template(Program& program);
void add_data(Program& program);
void add_report(Program& program);
void add_config_schema(Program& program);
void add_init_config(Program& program);
void add_import(Program& program);
void add_doctor(Program& program);
void add_completion(Program& program);
void add_cache(Program& program);

// Starts this command line once more as so many processes (a number, or auto: one per GPU), by mpirun, and waits for
// them. The exit code; nothing where one process is all that is asked for.
std::optional<int> run_as_processes(const std::string& processes, std::vector<std::string> arguments);

// "trian is not a command; did you mean train?" of the first word that no command or option is called; empty where all
// are known.
std::string unknown_word(const CLI::App& program, const std::vector<std::string>& arguments);

// "train: --resume takes no value, got '5'", which the parser would take for "true"; empty where there is none.
std::string switch_with_value(const CLI::App& program, const std::vector<std::string>& arguments);

// "help train" is "train --help".
std::vector<std::string> without_help_word(std::vector<std::string> arguments);

// What is wrong with a command line, as we would say it.
std::string explain(const CLI::ParseError& error, const CLI::App& program, const std::vector<std::string>& arguments);

// What is left on the command line after the command's own options: "--learning_rate 1e-4" or "--learning-rate=1e-4".
std::vector<std::pair<std::string, std::string>> parse_overrides(const CLI::App& command);

}  // namespace inlay::cli
