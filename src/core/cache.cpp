#include "core/cache.h"

#include "core/environment.h"

namespace inlay {

std::filesystem::path cache_folder() {
  if (const auto folder = environment("XDG_CACHE_HOME")) return std::filesystem::path(*folder) / "inlay";
  if (const auto home = environment("HOME")) return std::filesystem::path(*home) / ".cache" / "inlay";
  return {};
}

}  // namespace inlay
