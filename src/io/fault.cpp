#include "io/fault.h"

#include <signal.h>

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
};

Fault wanted() {
  const std::string fault = environment("INLAY_TEST_FAULT").value_or("");
  const std::size_t colon = fault.find(':');
  if (colon == fault.npos) return {};
  return {.at = std::atoll(fault.c_str() + colon + 1), .kills = fault.starts_with("kill:")};
}

}  // namespace

int injected_fault(DiskOperation operation) {
  static const Fault fault = wanted();
  if (fault.at == 0) return 0;
  static std::atomic<long long> counter{0};
  const long long number = ++counter;
  if (number < fault.at) return 0;
  if (fault.kills) ::raise(SIGKILL);
  return operation == DiskOperation::remove ? 0 : ENOSPC;
}

}  // namespace inlay::io
