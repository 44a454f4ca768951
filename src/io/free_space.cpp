#include "io/free_space.h"

#include "io/fault.h"
#include "io/paths.h"

namespace inlay::io {

namespace fs = std::filesystem;

fs::path nearest_existing(const fs::path& path) {
  std::error_code error;
  fs::path there = fs::absolute(path, error);
  while (!there.empty() && !io::exists(there) && there != there.parent_path()) there = there.parent_path();
  return there;
}

std::optional<std::uint64_t> free_space(const fs::path& folder) {
  if (const auto injected = injected_space()) return injected;
  std::error_code error;
  const fs::space_info space = fs::space(nearest_existing(folder), error);
  if (error || space.capacity == 0) return std::nullopt;  // some file systems do not count
  return space.available;
}

}  // namespace inlay::io
