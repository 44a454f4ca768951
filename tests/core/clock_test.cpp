#include "core/clock.h"

#include <gtest/gtest.h>

namespace inlay {
namespace {

TEST(CoreClock, WritesTimesAsEverybodyReadsThem) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(951782400.5), "2000-02-29T00:00:00.500Z");
  EXPECT_EQ(utc_text(1794830617.25), "2026-11-16T12:03:37.250Z");
  EXPECT_GT(wall_clock(), 1.7e9);
}

}  // namespace
}  // namespace inlay
