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
  other.seed = 43;
  EXPECT_EQ(error_of(batching_of(options), batching_of(options)), "<no error>");
  EXPECT_EQ(error_of(batching_of(options), batching_of(other)),
            "run/checkpoint-2: the run's batches were made with seed 42, but now it is seed 43: documents would be "
            "skipped or repeated; resume with the run's own keys");
  other.sequence_len = options.sequence_len + 1;
  EXPECT_THAT(error_of(batching_of(options), batching_of(other)),
              HasSubstr("made with seed 42, sequence_len 2048, but now it is seed 43, sequence_len 2049:"));
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

// A run of several processes keeps its steps when it goes on with more or fewer.
TEST(TrainBatching, AnotherNumberOfProcessesGoesOnWithStepsAsLarge) {
  options::TrainOptions options;
  options.gradient_accumulation_steps = 3;
  const std::string began = batching_of(options, 4);
  EXPECT_EQ(step_micro_batches(began), 12);
  EXPECT_EQ(step_micro_batches(batching_of(options)), 3);
  for (const int processes : {1, 2, 4, 8}) {
    EXPECT_EQ(error_of(began, batching_of(options, processes)), "<no error>") << processes;
  }
  EXPECT_EQ(step_size_note(began, options, 4), "");
  EXPECT_EQ(step_size_note(began, options, 2),
            "12 micro-batches per step, as when the run began: 3 for each of 2 processes would give 6");
  // As many in all, said otherwise.
  options.gradient_accumulation_steps = 6;
  EXPECT_EQ(error_of(began, batching_of(options, 2)), "<no error>");
  EXPECT_EQ(step_size_note(began, options, 2), "");
  EXPECT_THAT(error_of(began, batching_of(options, 3)),
              ::testing::AllOf(HasSubstr("gradient_accumulation_steps 3"), HasSubstr("gradient_accumulation_steps 6")));
  options.gradient_accumulation_steps = 3;
  options.seed = 7;
  EXPECT_THAT(error_of(began, batching_of(options, 4)), HasSubstr("batches were made with seed 42"));
}

// One process writes what it always wrote.
TEST(TrainBatching, CheckpointsOfOneProcessAreAsTheyWere) {
  options::TrainOptions options;
  options.gradient_accumulation_steps = 4;
  EXPECT_EQ(batching_of(options),
            "seed 42, sequence_len 2048, micro_batch_size 1, gradient_accumulation_steps 4, sample_packing true, "
            "shuffle true, excess_length_strategy truncate, packing 2");
  EXPECT_EQ(error_of(batching_of(options), batching_of(options, 2)), "<no error>");
}

}  // namespace
}  // namespace inlay::train
