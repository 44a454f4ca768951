#pragma once

#include <filesystem>
#include <optional>

namespace inlay::backend::cpu {

// The threads that kernels may use: OMP_NUM_THREADS, but no more than this process is granted. More would not be
// faster.
int threads();

// Fewer, where other processes compute on the same processors; never more than are granted.
void limit_threads(int most);
// Any number, for tests.
void set_threads(int count);

// The processors that this process may use: those of its affinity mask, and no more than its cgroup's quota.
int granted_processors();

// The quota of the process's cgroup and of those above it, in processors; nothing where there is none. root: where
// /proc and /sys are.
std::optional<double> processor_quota(const std::filesystem::path& root = "/");

}  // namespace inlay::backend::cpu
