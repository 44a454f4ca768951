#include <gmock/gmock.h>

#include "backend/lanes.h"
#include "backend/spill_file.h"
#include "support/device_tensors.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using backend::Lane;
using backend::Signal;
using ::testing::HasSubstr;

class BackendLanes : public ::testing::TestWithParam<Device> {};

// There and back many times over, each copy ordered after the kernel before it by signals alone.
TEST_P(BackendLanes, CopiesAndKernelsKeepTheirOrder) {
  constexpr std::int64_t size = 1 << 20;
  backend::Exec exec = backend::Exec::runner(GetParam(), 4 * size * 2, 4 * size * 2);
  const View device = exec.arena().keep(MemoryClass::workspace, "device", DType::i32, {size});
  const View home = exec.host().arena().keep(MemoryClass::workspace, "host", DType::i32, {size});
  const View other = exec.host().arena().keep(MemoryClass::workspace, "other", DType::i32, {size});
  for (std::int32_t round = 1; round <= 20; ++round) {
    exec.synchronize();
    std::fill_n(home.as<std::int32_t>(), size, round);
    Signal arrived, cleared;
    copy_to_device(exec, device, home);
    arrived.record(exec, Lane::to_device);
    arrived.wait(exec, Lane::to_host);
    copy_to_host(exec, other, device);
    Signal copied;
    copied.record(exec, Lane::to_host);
    copied.wait(exec, Lane::compute);
    exec.fill_zero(device);  // must not overtake the copy
    cleared.record(exec, Lane::compute);
    copied.wait_on_host();
    EXPECT_EQ(other.as<std::int32_t>()[0], round);
    EXPECT_EQ(other.as<std::int32_t>()[size - 1], round);
  }
}

TEST_P(BackendLanes, CallsComeInTheLanesOrder) {
  backend::Exec exec = backend::Exec::runner(GetParam(), 1 << 20, 1 << 20);
  std::vector<int> seen;
  for (int i = 0; i < 50; ++i) call_in_lane(exec, Lane::to_host, [&seen, i] { seen.push_back(i); });
  exec.synchronize();
  ASSERT_EQ(seen.size(), 50u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_P(BackendLanes, MoreHostMemoryThanThereIsIsRefused) {
  EXPECT_THAT(user_error_of([&] { backend::Exec::runner(GetParam(), 1 << 20, std::size_t{1} << 60); }),
              HasSubstr("the system refused"));
}

INSTANTIATE_TEST_SUITE_P(, BackendLanes, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(BackendSpillFile, GivesBackWhatItGotAndRemembersFailures) {
  const TempFolder folder;
  backend::SpillFile file(folder.path(), 1 << 16);
  EXPECT_EQ(folder.entry_count(), 0u) << "it has no name";
  const std::string text = "what was kept";
  std::string back(text.size(), ' ');
  file.write(1000, text.data(), text.size());
  file.read(1000, back.data(), back.size());
  EXPECT_EQ(back, text);
  EXPECT_NO_THROW(file.check());
  file.read(1 << 16, back.data(), back.size());  // beyond its end
  EXPECT_THAT(user_error_of([&] { file.check(); }), HasSubstr("the last checkpoint is intact"));
}

}  // namespace
}  // namespace inlay::testing
