#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include <inlay/version.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/threads.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/terminal.h"
#include "parallel/processes.h"
#include "parallel/relay.h"

namespace {

constexpr int user_mistake = 2, our_mistake = 1;

// Who has an error: all processes of a run, this one, or another one that says so itself.
enum class Whose : std::uint8_t { everybody, mine, another };

// Of an error that all processes of a run have, the first one speaks. One that has an error of its own says who it is.
void say(Whose whose, const inlay::parallel::Place& place, const std::string& what) {
  if (whose == Whose::another || (whose == Whose::everybody && place.rank > 0)) return;
  const bool colour = inlay::wants_colour(STDERR_FILENO);
  std::string who;
  if (place.size > 1 && whose == Whose::mine) {
    const std::string name = inlay::parallel::process_name();
    who = (name.empty() ? fmt::format("rank {}", place.rank) : name) + ": ";
  }
  fmt::print(stderr, "{}inlay:{} {}{}\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", who, what);
  std::fflush(stderr);
}

// Who has an error of its own ends the others, which would wait for it; else they end together, or are ended.
int end_with(int code, Whose whose, const inlay::parallel::Place& place) {
  if (whose == Whose::mine) {
    inlay::parallel::abandon_processes(code);
    return code;
  }
  inlay::parallel::leave_processes();
  return inlay::parallel::exit_code_for_launcher(code, place);
}

struct Failure {
  int code = our_mistake;
  Whose whose = Whose::mine;
  std::string what;
};
// Of the exception that is being handled.
Failure current_failure() {
  using namespace inlay;
  try {
    throw;
  } catch (const Interrupted& interruption) {
    return {interrupt_exit_code(), Whose::mine, interruption.what()};
  } catch (const parallel::SharedError& error) {
    return {user_mistake, Whose::everybody, error.what()};
  } catch (const parallel::FailedElsewhere& error) {
    return {our_mistake, Whose::another, error.what()};
  } catch (const UserError& error) {
    return {user_mistake, Whose::mine, error.what()};
  } catch (const std::bad_alloc&) {
    return {user_mistake, Whose::mine, "out of host memory"};
  } catch (const std::exception& error) {
    return {our_mistake, Whose::mine, std::string("internal error: ") + error.what()};
  }
}

// As wide as the terminal that it is for.
std::string help_for(int descriptor, const CLI::App& app) {
  const std::optional<std::size_t> width = inlay::terminal_width(descriptor);
  return width ? inlay::wrapped(app.help(), *width) : app.help();
}

int run(inlay::cli::Program& program, int argc, char** argv, const inlay::parallel::Place& place) {
  using namespace inlay;
  program.arguments = cli::without_help_word({argv + 1, argv + argc});
  program.app.require_subcommand(1);
  program.app.set_version_flag("--version", [] {
    const Version v = version();
    return fmt::format("inlay {}\ncommit {}, {}, {}\nkernels: {}", v.number, v.commit, v.compiler,
                       v.cuda.empty() ? "without CUDA" : "CUDA " + v.cuda, v.kernels);
  });
  for (const auto add :
       {cli::add_train,  cli::add_eval,          cli::add_info,        cli::add_plan,     cli::add_grad,
        cli::add_init,   cli::add_generate,      cli::add_chat,        cli::add_merge,    cli::add_export,
        cli::add_bench,  cli::add_continual,     cli::add_tokenize,    cli::add_template, cli::add_data,
        cli::add_report, cli::add_config_schema, cli::add_init_config, cli::add_import,   cli::add_doctor,
        cli::add_cache,  cli::add_completion}) {
    add(program);
  }
  try {
    if (argc < 2) {
      if (place.rank == 0) fmt::print(stderr, "{}", help_for(STDERR_FILENO, program.app));
      return end_with(user_mistake, Whose::everybody, place);
    }
    if (const std::string valued = cli::switch_with_value(program.app, program.arguments); !valued.empty()) {
      say(Whose::everybody, place, valued);
      return end_with(user_mistake, Whose::everybody, place);
    }
    program.app.parse(std::vector<std::string>(program.arguments.rbegin(), program.arguments.rend()));
  } catch (const CLI::ParseError& error) {
    if (place.rank > 0) return error.get_exit_code() == 0 ? 0 : user_mistake;
    // Where a word is not known, the parser may miss what should have stood in its place.
    const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
    if (kind == CLI::ExitCodes::ExtrasError || kind == CLI::ExitCodes::RequiredError) {
      if (const std::string unknown = cli::unknown_word(program.app, program.arguments); !unknown.empty()) {
        say(Whose::everybody, place, unknown);
        return end_with(user_mistake, Whose::everybody, place);
      }
    }
    if (error.get_name() == "CallForHelp") {
      fmt::print("{}", help_for(STDOUT_FILENO, program.app));
      return 0;
    }
    if (error.get_exit_code() == 0) return program.app.exit(error);  // --version
    say(Whose::everybody, place, cli::explain(error, program.app, program.arguments));
    return end_with(user_mistake, Whose::everybody, place);
  }
  if (place.size > 1 && !program.several_processes) {
    throw parallel::SharedError(fmt::format("inlay {} runs in one process; start it without mpirun or srun",
                                            program.app.get_subcommands().front()->get_name()));
  }
  const int code = program.action();
  parallel::leave_processes();
  return parallel::exit_code_for_launcher(code, place);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace inlay;
  parallel::Place place;
  try {
    place = parallel::place_in_environment();
    parallel::set_last_words([&place] {
      const Failure failure = current_failure();
      say(failure.whose, place, failure.what);
      return failure.code;
    });
    // What is wrong with them is said now, not in the middle of a run.
    backend::cpu::chosen_isa();
    backend::cpu::threads();
    cli::Program program;
    return run(program, argc, argv, place);
  } catch (...) {
    const Failure failure = current_failure();
    say(failure.whose, place, failure.what);
    return end_with(failure.code, failure.whose, place);
  }
}
