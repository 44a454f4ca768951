#pragma once

#include <signal.h>

#include <string_view>

#include "core/error.h"

// Ctrl-C and termination: heard where nothing is lost by stopping. SIGUSR1 counts as one of them: it is what mpirun and
// Slurm pass on to all processes of a run.
namespace inlay {

// One of them came before there was a step to finish.
class Interrupted : public UserError {
 public:
  using UserError::UserError;
};

// Makes them end a run after its current step. Called once by the program. Who presses the keys is told, or sees it.
enum class Heard : bool { silently, aloud };
void install_interrupt_handler(Heard heard = Heard::aloud);
// The same for a program that has handlers of its own: as if Ctrl-C had come, and as if nothing had.
void request_interrupt();
void forget_interrupt();
// What is still done where one that comes a second time ends the process at once; it may do no more than a signal's
// handler may. Null: nothing.
void before_exit_at_once(void (*last)());
// Whether one of them has come.
bool interrupt_requested();
// What a shell expects of a process that such a signal ended: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP,
// 138 after SIGUSR1.
int interrupt_exit_code();
// Throws Interrupted where one has come, to this process or to one that stops with it, while nothing was written yet.
void stop_where_asked(std::string_view doing, bool asked = interrupt_requested());

// Keeps signals from the calling thread, and from those that it starts, while it lives: a handler's frame must not lie
// on a stack that computes (interrupt.cpp says why). They wait, or go to other threads.
class SignalShield {
 public:
  SignalShield();
  ~SignalShield();
  SignalShield(const SignalShield&) = delete;
  SignalShield& operator=(const SignalShield&) = delete;

 private:
  sigset_t before_;
};

}  // namespace inlay
