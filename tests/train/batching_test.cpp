#include "train/batching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/files.h"

namespace inlay::train {
namespace {

using inlay::testing::user_error_of;
using ::testing::HasSubstr;

std::string error_of(const std::string& saved, const std::string& now) {
  return user_error_of([&] { check_batching("run/checkpoint-2", saved, now); });
}

TEST(TrainBatching, OtherOptionsAreNamed) {
  options::TrainOptions options, other;
  other.seed = options.seed + 1;
  EXPECT_EQ(error_of(batching_of(options), batching_of(options)), "<no error>");
  EXPECT_THAT(error_of(batching_of(options), batching_of(other)),
              HasSubstr("run/checkpoint-2: the run's batches were made with seed"));
}

// Version 1 sorted documents by length, and did not say its version.
TEST(TrainBatching, ACheckpointThatWasPackedDifferentlyIsRefused) {
  const options::TrainOptions options;
  const std::string now = batching_of(options);
  const std::string then = now.substr(0, now.find(", packing "));
  ASSERT_NE(then, now);
  EXPECT_THAT(error_of(then, now), HasSubstr("another version of inlay packed this run's documents"));
  EXPECT_THAT(error_of(then + ", packing 99", now), HasSubstr("another version of inlay"));
}

// Without packing, or in the files' order, batches are what they always were.
TEST(TrainBatching, WhereNothingChangedOldCheckpointsGoOn) {
  options::TrainOptions options;
  options.sample_packing = false;
  EXPECT_THAT(batching_of(options), ::testing::Not(HasSubstr("packing 2")));
  options.sample_packing = true;
  options.shuffle = false;
  EXPECT_THAT(batching_of(options), ::testing::Not(HasSubstr("packing 2")));
}

}  // namespace
}  // namespace inlay::train
