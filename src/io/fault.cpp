#include "io/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "core/environment.h"

namespace inlay::io {
namespace {

struct Fault {
  long long at = 0;  // 0: never
  bool kills = false;
  int log = -1;  // a descriptor, open as long as the process lives
};

Fault wanted() {
  const std::string fault = environment("INLAY_TEST_FAULT").value_or("");
  const std::size_t colon = fault.find(':');
  if (colon == fault.npos) return {};
  if (fault.starts_with("log:")) {
    return {.log = ::open(fault.c_str() + colon + 1, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
  }
  return {.at = std::atoll(fault.c_str() + colon + 1), .kills = fault.starts_with("kill:")};
}

const char* operation_name(DiskOperation operation) {
  switch (operation) {
    case DiskOperation::open: return "open";
    case DiskOperation::write: return "write";
    case DiskOperation::sync: return "sync";
    case DiskOperation::rename: return "rename";
    case DiskOperation::link: return "link";
    case DiskOperation::make_folder: return "make_folder";
    case DiskOperation::remove: return "remove";
  }
  return "";
}

// One write, so that threads do not mix their lines.
void log_operation(int descriptor, DiskOperation operation, const std::filesystem::path& path) {
  const std::string line = std::string(operation_name(operation)) + " " + path.string() + "\n";
  [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
}

}  // namespace

int injected_fault(DiskOperation operation, const std::filesystem::path& path) {
  static const Fault fault = wanted();
  if (fault.log >= 0) log_operation(fault.log, operation, path);
  if (fault.at == 0) return 0;
  static std::atomic<long long> counter{0};
  const long long number = ++counter;
  if (number < fault.at) return 0;
  if (fault.kills) ::raise(SIGKILL);
  return operation == DiskOperation::remove ? 0 : ENOSPC;
}

}  // namespace inlay::io
