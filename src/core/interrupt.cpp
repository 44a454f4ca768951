#include "core/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace inlay {

namespace {

std::atomic<int> received = 0;  // the signal, or 0; lock-free, so a handler may set it
std::atomic<bool> aloud = true;
std::atomic<void (*)()> last_act = nullptr;

[[noreturn]] void exit_at_once(int code) {
  if (auto* const last = last_act.load()) last();
  std::_Exit(code);
}

}  // namespace

void install_interrupt_handler(Heard heard) {
  aloud = heard == Heard::aloud;
  const auto note = [](int signal) {
    int none = 0;
    if (!received.compare_exchange_strong(none, signal)) exit_at_once(128 + signal);  // a second time
    // A step may take long; who pressed the keys sees that they were heard. write() is allowed in a handler.
    static constexpr std::string_view answer = "\nstopping as soon as it is safe; press again to stop at once\n";
    if (aloud && ::isatty(STDERR_FILENO) == 1 && ::write(STDERR_FILENO, answer.data(), answer.size()) < 0) return;
  };
  // A library may have threads by now, and one of them may be picked: the handler is for those.
  struct sigaction action {};
  action.sa_handler = note;
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    // Under nohup the closing of a terminal is meant to be survived.
    struct sigaction before {};
    if (signal == SIGHUP && ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
    sigaddset(&signals, signal);
  }
  // Threads that compute are never interrupted: those made from here on inherit the mask, and one that does nothing
  // else waits for the signals. oneDNN's sgemm does not survive a handler's frame on the stack that it works on: the
  // heap was corrupt afterwards in every fifth case; on another stack, never.
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, note] {
    for (;;) {
      int signal = 0;
      if (::sigwait(&signals, &signal) == 0) note(signal);
    }
  }).detach();
}

void request_interrupt() { received = SIGINT; }

void before_exit_at_once(void (*last)()) { last_act = last; }

void forget_interrupt() { received = 0; }

bool interrupt_requested() { return received != 0; }

int interrupt_exit_code() { return 128 + (received != 0 ? received.load() : SIGINT); }

SignalShield::SignalShield() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&signals, fault);
  ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalShield::~SignalShield() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void stop_where_asked(std::string_view doing, bool asked) {
  if (asked) throw Interrupted(fmt::format("interrupted while {}; nothing was written", doing));
}

}  // namespace inlay
