#include "core/cache.h"

#include <cstdlib>

namespace inlay {

std::filesystem::path cache_folder() {
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0') {
    return std::filesystem::path(folder) / "inlay";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".cache" / "inlay";
  }
  return {};
}

}  // namespace inlay
