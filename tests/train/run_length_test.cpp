#include "train/run_length.h"

#include <gtest/gtest.h>

namespace inlay::train {
namespace {

TEST(TrainRunLength, CountsStepsEpochsAndTokens) {
  // Ten documents of 32 tokens, two in a micro-batch, two micro-batches in a step: three steps an epoch.
  const data::BatchSampler sampler(
      std::vector<std::int64_t>(10, 32),
      {.sequence_len = 32, .micro_batch_size = 2, .sample_packing = false, .seed = 1, .shuffle = true});
  const RunLength length = run_length(6, sampler, 2, 64);
  EXPECT_EQ(length.tokens, 640);
  EXPECT_DOUBLE_EQ(length.epochs, 2);
  EXPECT_DOUBLE_EQ(length.seconds, 10);
  EXPECT_EQ(text_of(length), "6 steps over 2 epochs, about 640 tokens, about 10s without evaluations and checkpoints");
  EXPECT_EQ(text_of(run_length(3, sampler, 2, 0)), "3 steps over 1 epoch, about 320 tokens");
  EXPECT_EQ(text_of({.steps = 1}), "1 step");
  EXPECT_EQ(text_of({.steps = 1, .tokens = 5, .epochs = 0.01}), "1 step over less than 0.1 epochs, about 5 tokens");
}

}  // namespace
}  // namespace inlay::train
