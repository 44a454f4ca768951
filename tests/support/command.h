#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace inlay::testing {

struct CommandResult {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

struct CommandLimits {
  std::size_t file_bytes = 0;  // largest file the program may write; 0: any
  int interrupt_after_ms = 0;  // send SIGINT then; 0: never
};

// Runs the inlay binary of this build as a user would.
CommandResult inlay(const std::vector<std::string>& arguments, CommandLimits limits = {});

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path path;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

void write_text(const std::filesystem::path& path, const std::string& text);
std::string read_text(const std::filesystem::path& path);

}  // namespace inlay::testing
