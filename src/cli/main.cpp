#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "backend/cpu/threads.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/terminal.h"

namespace {

constexpr int user_mistake = 2, our_mistake = 1;

int report(int code, const char* kind, const char* what) {
  const bool colour = inlay::wants_colour(STDERR_FILENO);
  std::fprintf(stderr, "%sinlay:%s %s%s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", kind, what);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace inlay;
  backend::cpu::limit_threads();
  try {
    cli::Program program;
    program.app.require_subcommand(1);
    program.app.set_version_flag("--version", "inlay 0.1.0");
    for (const auto add :
         {cli::add_train, cli::add_eval, cli::add_info, cli::add_plan, cli::add_grad, cli::add_init, cli::add_generate,
          cli::add_merge, cli::add_bench, cli::add_continual, cli::add_tokenize, cli::add_template, cli::add_data,
          cli::add_report, cli::add_config_schema, cli::add_init_config, cli::add_completion}) {
      add(program);
    }
    try {
      program.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return program.app.exit(error) == 0 ? 0 : user_mistake;
    }
    return program.action();
  } catch (const Interrupted& interruption) {
    return report(interrupt_exit_code(), "", interruption.what());
  } catch (const UserError& error) {
    return report(user_mistake, "", error.what());
  } catch (const std::bad_alloc&) {
    return report(user_mistake, "", "out of host memory");
  } catch (const std::exception& error) {
    return report(our_mistake, "internal error: ", error.what());
  }
}
