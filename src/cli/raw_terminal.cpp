#include "cli/raw_terminal.h"

#include <pthread.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "core/interrupt.h"

namespace inlay::cli {

namespace {

// Of the one that lives. A second Ctrl-C ends the program from a handler, which may read these and do what is here.
termios settings_before{}, raw_settings{};
std::atomic<bool> lives = false, was_away = false;

// A process in the background that touches the terminal is stopped for it.
bool in_foreground() { return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

void set_terminal(const termios& settings, std::string_view pastes) {
  if (!lives || !in_foreground()) return;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  if (::write(STDOUT_FILENO, pastes.data(), pastes.size()) < 0) return;  // nobody to tell
}

void enter_raw() { set_terminal(raw_settings, "\033[?2004h"); }
void leave_raw() { set_terminal(settings_before, "\033[?2004l"); }

pthread_t stop_listener{};

// As if nobody had heard it: all threads stop, and this returns when somebody has them go on.
void stop_here(const sigset_t& stop) {
  struct sigaction ours {
  }, usual{};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGTSTP, &usual, &ours);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  ::sigaction(SIGTSTP, &ours, nullptr);
}

// Ctrl-Z has a thread of its own, as interrupts do: a handler would run on stacks that compute (core/interrupt).
void hear_stops() {
  static bool heard = false;
  struct sigaction action {};
  if (std::exchange(heard, true)) return;
  if (::sigaction(SIGTSTP, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  std::thread thread([stop] {
    for (int signal = 0; ::sigwait(&stop, &signal) == 0;) {
      leave_raw();
      stop_here(stop);
      was_away = true;
      enter_raw();
    }
  });
  stop_listener = thread.native_handle();
  thread.detach();
  // A library may have threads by now that do not block it: they pass it on.
  action = {};
  action.sa_handler = [](int signal) { ::pthread_kill(stop_listener, signal); };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTSTP, &action, nullptr);
}

}  // namespace

RawTerminal::RawTerminal() {
  if (::tcgetattr(STDIN_FILENO, &settings_before) != 0) return;
  raw_settings = settings_before;
  raw_settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  raw_settings.c_cc[VMIN] = 1;
  raw_settings.c_cc[VTIME] = 0;
  lives = true;
  hear_stops();
  before_exit_at_once(leave_raw);
  enter_raw();
}

RawTerminal::~RawTerminal() {
  before_exit_at_once(nullptr);
  leave_raw();
  lives = false;
}

bool RawTerminal::taken_back() {
  termios now{};
  if (lives && ::tcgetattr(STDIN_FILENO, &now) == 0 && (now.c_lflag & (ICANON | ECHO)) != 0 && in_foreground()) {
    enter_raw();
    was_away = true;
  }
  return was_away.exchange(false);
}

}  // namespace inlay::cli
