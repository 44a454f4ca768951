#pragma once

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
  std::vector<std::pair<std::string, std::string>> environment;  // more of it
};

// Runs the inlay binary of this build as a user would.
CommandResult inlay(const std::vector<std::string>& arguments, CommandLimits limits = {});

}  // namespace inlay::testing
