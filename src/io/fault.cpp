#include "io/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/environment.h"
#include "core/error.h"

namespace inlay::io {
namespace {

enum class FaultKind : std::uint8_t { nothing, kill, enospc, defect, stuck, space, log };

struct Fault {
  FaultKind kind = FaultKind::nothing;
  long long at = 0;    // the number of an operation, or of bytes
  std::string within;  // or a part of a file's name
  int log = -1;        // a descriptor, open as long as the process lives
};

Fault wanted() {
  const std::string fault = environment("INLAY_TEST_FAULT").value_or("");
  const std::size_t colon = fault.find(':');
  if (colon == fault.npos) return {};
  const std::string kind = fault.substr(0, colon), what = fault.substr(colon + 1);
  if (kind == "log") {
    return {.kind = FaultKind::log, .log = ::open(what.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
  }
  if (kind == "stuck") return {.kind = FaultKind::stuck, .within = what};
  const long long at = std::atoll(what.c_str());
  if (at == 0) return {};
  if (kind == "space") return {.kind = FaultKind::space, .at = at};
  if (kind == "defect") return {.kind = FaultKind::defect, .at = at};
  return {.kind = kind == "kill" ? FaultKind::kill : FaultKind::enospc, .at = at};
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

int no_space_for(DiskOperation operation) { return operation == DiskOperation::remove ? 0 : ENOSPC; }

// The first operation on such a file takes longer than anybody waits; meanwhile the disk is full for all others.
int stuck_at(const std::string& within, DiskOperation operation, const std::filesystem::path& path) {
  static std::atomic<bool> stuck{false};
  if (stuck) return no_space_for(operation);
  if (path.string().find(within) == std::string::npos || stuck.exchange(true)) return 0;
  std::this_thread::sleep_for(std::chrono::minutes(1));
  return 0;
}

const Fault& fault_wanted() {
  static const Fault fault = wanted();
  return fault;
}

}  // namespace

std::optional<std::uint64_t> injected_space() {
  if (fault_wanted().kind != FaultKind::space) return std::nullopt;
  return static_cast<std::uint64_t>(fault_wanted().at);
}

int injected_fault(DiskOperation operation, const std::filesystem::path& path) {
  const Fault& fault = fault_wanted();
  if (fault.kind == FaultKind::nothing || fault.kind == FaultKind::space) return 0;
  if (fault.kind == FaultKind::log) {
    log_operation(fault.log, operation, path);
    return 0;
  }
  if (fault.kind == FaultKind::stuck) return stuck_at(fault.within, operation, path);
  static std::atomic<long long> counter{0};
  const long long number = ++counter;
  if (number < fault.at) return 0;
  if (fault.kind == FaultKind::kill) ::raise(SIGKILL);
  if (fault.kind == FaultKind::enospc) return no_space_for(operation);
  static std::atomic<bool> thrown{false};
  if (operation == DiskOperation::remove || thrown.exchange(true)) return 0;  // removing is what destructors do
  throw InternalError("a defect on purpose");
}

}  // namespace inlay::io
