#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include <inlay/version.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/threads.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/terminal.h"
#include "parallel/processes.h"

namespace {

constexpr int user_mistake = 2, our_mistake = 1;

enum class Whose : std::uint8_t { everybody, mine };

// Of an error that all processes of a run have, the first one speaks, and they end together. One that has an error of
// its own says who it is, and ends the others: they would wait for it.
int end_with(int code, Whose whose, const inlay::parallel::Place& place, const std::string& what) {
  const bool colour = inlay::wants_colour(STDERR_FILENO);
  std::string who;
  if (place.size > 1 && whose == Whose::mine) {
    const std::string name = inlay::parallel::process_name();
    who = (name.empty() ? fmt::format("rank {}", place.rank) : name) + ": ";
  }
  if (whose == Whose::mine || place.rank == 0) {
    fmt::print(stderr, "{}inlay:{} {}{}\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", who, what);
    std::fflush(stderr);
  }
  if (whose == Whose::mine) {
    inlay::parallel::abandon_processes(code);
    return code;
  }
  inlay::parallel::leave_processes();
  return inlay::parallel::exit_code_for_launcher(code, place);
}

int run(inlay::cli::Program& program, int argc, char** argv, const inlay::parallel::Place& place) {
  using namespace inlay;
  program.arguments.assign(argv + 1, argv + argc);
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
    program.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (place.rank > 0) return error.get_exit_code() == 0 ? 0 : user_mistake;
    // Where a word is not known, the parser may miss what should have stood in its place.
    const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
    if (kind == CLI::ExitCodes::ExtrasError || kind == CLI::ExitCodes::RequiredError) {
      if (const std::string unknown = cli::unknown_word(program.app, program.arguments); !unknown.empty()) {
        return end_with(user_mistake, Whose::everybody, place, unknown);
      }
    }
    return program.app.exit(error) == 0 ? 0 : user_mistake;
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
    // What is wrong with them is said now, not in the middle of a run.
    backend::cpu::chosen_isa();
    backend::cpu::threads();
    cli::Program program;
    return run(program, argc, argv, place);
  } catch (const Interrupted& interruption) {
    return end_with(interrupt_exit_code(), Whose::mine, place, interruption.what());
  } catch (const parallel::SharedError& error) {
    return end_with(user_mistake, Whose::everybody, place, error.what());
  } catch (const UserError& error) {
    return end_with(user_mistake, Whose::mine, place, error.what());
  } catch (const std::bad_alloc&) {
    return end_with(user_mistake, Whose::mine, place, "out of host memory");
  } catch (const std::exception& error) {
    return end_with(our_mistake, Whose::mine, place, std::string("internal error: ") + error.what());
  }
}
