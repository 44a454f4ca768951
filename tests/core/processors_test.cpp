#include "core/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <thread>

#include "support/files.h"

namespace inlay::testing {
namespace {

// The folders of /proc and /sys that say what a cgroup grants.
class Groups {
 public:
  explicit Groups(const std::string& membership) { write("proc/self/cgroup", membership); }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((folder_ / file).parent_path());
    folder_.write(file, text);
  }
  std::optional<double> quota() const { return processor_quota(folder_ / ""); }

 private:
  TempFolder folder_;
};

TEST(CoreProcessors, TheQuotaIsTheLeastOnTheWayUp) {
  Groups groups("0::/user/job\n");
  groups.write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  EXPECT_EQ(groups.quota(), std::nullopt);
  groups.write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  EXPECT_EQ(groups.quota(), 1.5);
  groups.write("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(groups.quota(), 0.5);
  groups.write("sys/fs/cgroup/user/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(groups.quota(), 1.5);
}

TEST(CoreProcessors, AContainersOwnRootIsLookedAtWhereItsPathIsNotToBeSeen) {
  Groups groups("0::/docker/0123abcd\n");
  groups.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(groups.quota(), 2.0);
}

TEST(CoreProcessors, TheFirstVersionOfCgroupsHasQuotasToo) {
  Groups groups("5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n");
  groups.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  groups.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups.quota(), std::nullopt);
  groups.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(groups.quota(), 3.0);
}

TEST(CoreProcessors, NothingSaidIsNoQuota) {
  EXPECT_EQ(Groups("").quota(), std::nullopt);
  Groups nonsense("0::/\n");
  nonsense.write("sys/fs/cgroup/cpu.max", "plenty\n");
  EXPECT_EQ(nonsense.quota(), std::nullopt);
}

TEST(CoreProcessors, AffinityBoundsThem) {
  int granted = 0;
  std::thread([&] {
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    granted = granted_processors();
  }).join();
  EXPECT_EQ(granted, 1);
}

// Work that is shared out asks every time.
TEST(CoreProcessors, FilesAreReadOnce) {
  const auto bytes_read = [] {
    std::ifstream file("/proc/thread-self/io");
    std::string name;
    std::uint64_t bytes = 0;
    file >> name >> bytes;
    return name == "rchar:" ? bytes : 0;
  };
  if (bytes_read() == 0) GTEST_SKIP() << "this kernel does not count what is read";
  const int granted = granted_processors();
  const std::uint64_t before = bytes_read(), counting = bytes_read() - before;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(granted_processors(), granted);
  EXPECT_LE(bytes_read() - before, 3 * counting);
}

}  // namespace
}  // namespace inlay::testing
