#include "core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace inlay {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "max 100000", "150000 100000": microseconds in each period. "-1 100000": none.
std::optional<double> ratio_of(const std::string& text) {
  std::istringstream words(text);
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// The least of what the folders from `group` up to `top` say. A path from outside of a container means nothing in it:
// then its root is all that can be seen.
template <class Read>
std::optional<double> least_of(const fs::path& top, const fs::path& group, const Read& read) {
  std::optional<double> least;
  std::error_code ignored;
  fs::path folder = top / group.relative_path();
  if (!fs::is_directory(folder, ignored)) folder = top;
  for (;; folder = folder.parent_path()) {
    if (const std::optional<double> here = read(folder)) least = std::min(least.value_or(*here), *here);
    if (folder == top || folder == folder.parent_path()) return least;
  }
}

}  // namespace

std::optional<double> processor_quota(const fs::path& root) {
  std::optional<double> quota;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path", "4:cpu,cpuacct:/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1), mount = root / "sys/fs/cgroup";
    std::optional<double> here;
    if (controllers == ",,") {
      here = least_of(mount, group, [](const fs::path& folder) { return ratio_of(first_line(folder / "cpu.max")); });
    } else if (controllers.find(",cpu,") != std::string::npos) {
      here = least_of(mount / "cpu", group, [](const fs::path& folder) {
        return ratio_of(first_line(folder / "cpu.cfs_quota_us") + " " + first_line(folder / "cpu.cfs_period_us"));
      });
    }
    if (here) quota = std::min(quota.value_or(*here), *here);
  }
  return quota;
}

int granted_processors() {
  // The mask is asked for every time: processes of a run are put to cores of their own after they have begun. The files
  // are read once.
  static const std::optional<double> quota = processor_quota();
  cpu_set_t mask;
  const bool known = sched_getaffinity(0, sizeof mask, &mask) == 0;
  int count = std::max(known ? CPU_COUNT(&mask) : static_cast<int>(std::thread::hardware_concurrency()), 1);
  // Rounded up: a group that has used up its share rests as a whole, so a thread for half a processor is not waited
  // for.
  if (quota) {
    count = std::min(count, std::max(static_cast<int>(std::ceil(*quota)), 1));
  }
  return count;
}

}  // namespace inlay
