#pragma once

#include <filesystem>
#include <optional>

namespace inlay {

// The processors that this thread may use: those of its affinity mask, and no more than the process's first quota.
int granted_processors();

// The quota of the process's cgroup and of those above it, in processors; nothing where there is none. root: where
// /proc and /sys are.
std::optional<double> processor_quota(const std::filesystem::path& root = "/");

}  // namespace inlay
