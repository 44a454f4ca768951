#include "core/clock.h"

#include <chrono>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

namespace inlay {

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_text(double seconds) {
  const auto milliseconds = static_cast<long long>(std::floor(seconds * 1000));
  const std::time_t whole = static_cast<std::time_t>(milliseconds / 1000);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, milliseconds % 1000);
}

}  // namespace inlay
