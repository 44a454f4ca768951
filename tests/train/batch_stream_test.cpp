#include "train/batch_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/lengths.h"

// A run's steps, shared by several ranks.
namespace inlay::testing {
namespace {

using train::BatchStream;
using train::StepTeam;
using train::TeamStep;

constexpr train::DealCost cost = {.token = 1, .square = 1e-3, .pass = 5};

// Documents whose every token is their number; some labels are masked, and some documents weighted.
data::Documents numbered(const std::vector<std::int64_t>& lengths) {
  std::vector<Document> documents;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    Document document;
    const auto length = static_cast<std::size_t>(lengths[i]) + 1;  // a label at least
    document.input_ids.assign(length, static_cast<std::int32_t>(i));
    document.labels.assign(length, static_cast<std::int32_t>(i));
    for (std::size_t j = 0; j + 1 < length; j += 3) document.labels[j] = ignore_label;
    if (i % 4 == 0) {
      for (std::size_t j = 0; j < length; ++j) document.weights.push_back(0.25f * static_cast<float>(j % 5));
    }
    documents.push_back(std::move(document));
  }
  return data::Documents::of(documents);
}

// How often each document stands in micro-batches.
std::map<std::int32_t, int> documents_of(const std::vector<PackedBatch>& batches) {
  std::map<std::int32_t, int> seen;
  for (const PackedBatch& batch : batches) {
    for (std::size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
      ++seen[batch.tokens[static_cast<std::size_t>(batch.cu_seqlens[d])]];
    }
  }
  return seen;
}

struct Ranks {
  Ranks(const data::BatchSampler& sampler, const data::Documents& documents, int size, std::int64_t epoch = 0,
        std::int64_t batch = 0, bool whole = false) {
    for (int rank = 0; rank < size; ++rank) {
      streams.emplace_back(sampler, documents, epoch, batch,
                           StepTeam{.rank = rank, .size = size, .cost = cost, .whole_batches = whole});
    }
  }
  std::vector<TeamStep> next(std::int64_t micro_batches) {
    std::vector<TeamStep> shares;
    for (BatchStream& stream : streams) shares.push_back(stream.next_step(micro_batches));
    return shares;
  }
  std::vector<BatchStream> streams;
};

std::vector<PackedBatch> together(const std::vector<TeamStep>& shares) {
  std::vector<PackedBatch> all;
  for (const TeamStep& share : shares) {
    all.insert(all.end(), share.micro_batches.begin(), share.micro_batches.end());
  }
  return all;
}

class TrainBatchStream : public ::testing::Test {
 protected:
  data::Documents documents = numbered(random_lengths(200, 40));
  data::BatchSampler sampler = {documents, {.sequence_len = 64, .micro_batch_size = 1, .seed = 5}};
};

TEST_F(TrainBatchStream, OneProcessHasTheSamplersMicroBatches) {
  BatchStream stream(sampler, documents, 0, 0);
  const TeamStep share = stream.next_step(3);
  ASSERT_EQ(share.micro_batches.size(), 3u);
  std::int64_t tokens = 0, valid = 0;
  double weight = 0;
  for (std::int64_t i = 0; i < 3; ++i) {
    const PackedBatch expected = pack(read_pieces(sampler, documents, sampler.documents_of(0, i)));
    const PackedBatch& batch = share.micro_batches[static_cast<std::size_t>(i)];
    EXPECT_EQ(batch.tokens, expected.tokens);
    EXPECT_EQ(batch.targets, expected.targets);
    EXPECT_EQ(batch.weights, expected.weights);
    tokens += batch.token_count();
    valid += batch.valid_count();
    weight += batch.valid_weight();
  }
  EXPECT_EQ(share.passes, 3);
  EXPECT_EQ(share.tokens, tokens);
  EXPECT_EQ(share.valid, valid);
  EXPECT_EQ(share.weight, weight);
  EXPECT_EQ(share.imbalance, 0);
}

TEST_F(TrainBatchStream, RanksShareAStepAndKnowAllOfIt) {
  for (const int size : {2, 3, 4, 8}) {
    for (const bool whole : {false, true}) {
      Ranks ranks(sampler, documents, size, 0, 0, whole);
      BatchStream alone(sampler, documents, 0, 0);
      while (alone.epoch() == 0) {
        const TeamStep expected = alone.next_step(12);
        const std::vector<TeamStep> shares = ranks.next(12);
        EXPECT_EQ(documents_of(together(shares)), documents_of(expected.micro_batches));
        std::int64_t next = 0, most = 0;
        for (const TeamStep& share : shares) {
          EXPECT_EQ(share.tokens, expected.tokens);
          EXPECT_EQ(share.valid, expected.valid);
          EXPECT_NEAR(share.weight, expected.weight, 1e-9);
          EXPECT_EQ(share.passes, shares[0].passes);
          EXPECT_EQ(share.imbalance, shares[0].imbalance);
          EXPECT_EQ(share.first_micro_batch, next);
          const auto count = static_cast<std::int64_t>(share.micro_batches.size());
          next += count;
          most = std::max(most, count);
        }
        EXPECT_EQ(shares[0].passes, most);
      }
    }
  }
}

// 4 ranks, then 3, then 1, then 2: every step has the documents that it has on one process throughout.
TEST_F(TrainBatchStream, ARunGoesOnWithTheSameStepsOnAnotherNumberOfRanks) {
  BatchStream alone(sampler, documents, 0, 0);
  std::int64_t epoch = 0, batch = 0;
  std::map<std::int32_t, int> seen;
  for (const int size : {4, 3, 1, 2}) {
    Ranks ranks(sampler, documents, size, epoch, batch);
    for (int step = 0; step < 5; ++step) {
      const auto shares = ranks.next(8);
      EXPECT_EQ(documents_of(together(shares)), documents_of(alone.next_step(8).micro_batches));
    }
    epoch = ranks.streams.front().epoch();
    batch = ranks.streams.back().batch();
    EXPECT_EQ(epoch, alone.epoch());
    EXPECT_EQ(batch, alone.batch());
  }
  EXPECT_GT(epoch, 0) << "no epoch ended";
}

TEST_F(TrainBatchStream, StepsAreCountedByTheirMicroBatches) {
  options::TrainOptions options;
  options.num_epochs = 1;
  const std::int64_t batches = sampler.batches_per_epoch(0);
  EXPECT_EQ(train::total_steps(options, sampler, 1), batches);
  EXPECT_EQ(train::total_steps(options, sampler, 8), (batches + 7) / 8);
}

}  // namespace
}  // namespace inlay::testing
