#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/files.h"

namespace inlay::testing {

struct CommandResult {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

struct CommandLimits {
  std::size_t file_bytes = 0;            // largest file the program may write; 0: any
  int interrupt_after_ms = 0;            // send a signal then; 0: never
  std::function<bool()> interrupt_when;  // send it as soon as this holds
  int signal = SIGINT;
  std::function<void()> interrupt;                               // do this instead of sending a signal
  std::vector<std::pair<std::string, std::string>> environment;  // more of it
};

// Runs a program, from the PATH where it has no folder.
CommandResult run(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                  CommandLimits limits = {});
// Runs the inlay binary of this build as a user would.
CommandResult inlay(const std::vector<std::string>& arguments, CommandLimits limits = {});
// Runs a command as so many processes, on this machine, however few cores it has.
CommandResult mpirun(int ranks, const std::vector<std::string>& command, CommandLimits limits = {});
bool has_mpirun();
// The process that mpirun has started as this rank and that has `word` in its command line; 0 where there is none.
pid_t process_of_rank(const std::string& word, int rank);
// Sends it a signal, where it is there.
void signal_rank(const std::string& word, int rank, int signal);
// A script that runs the inlay binary, after what it does on one rank alone: "INLAY_TEST_FAULT=kill:3" is set,
// "--learning_rate 1" is added to the arguments.
std::filesystem::path odd_rank(const TempFolder& folder, int rank, const std::string& environment,
                               const std::string& arguments = "");

// How often a text holds another.
inline std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace inlay::testing
