#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/philox.h"
#include "support/files.h"
#include "support/lengths.h"

namespace inlay::data {
namespace {

using inlay::testing::random_lengths;
using inlay::testing::real_lengths;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::vector<std::int64_t>> epoch_of(const BatchSampler& sampler, std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t i = 0; i < sampler.batches_per_epoch(epoch); ++i) batches.push_back(sampler.documents_of(epoch, i));
  return batches;
}

std::vector<std::int64_t> flat(const std::vector<std::vector<std::int64_t>>& batches) {
  std::vector<std::int64_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

using Case = std::tuple<bool, bool, std::int64_t, std::int64_t>;  // packing, shuffle, micro_batch_size, documents

class DataSampler : public ::testing::TestWithParam<Case> {};

TEST_P(DataSampler, EveryDocumentOnceAndNoBatchTooLarge) {
  const auto [packing, shuffle, micro_batch_size, documents] = GetParam();
  const auto lengths = random_lengths(documents, 150);
  const BatchSampler sampler(lengths, {.sequence_len = 100,
                                       .micro_batch_size = micro_batch_size,
                                       .sample_packing = packing,
                                       .seed = 7,
                                       .shuffle = shuffle});
  for (const std::int64_t epoch : {0, 1, 5}) {
    const auto batches = epoch_of(sampler, epoch);
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      ASSERT_FALSE(batches[i].empty());
      std::int64_t sum = 0;
      for (const std::int64_t document : batches[i]) {
        const std::int64_t length = sampler.length_of(document);
        ASSERT_EQ(length, std::min<std::int64_t>(lengths[static_cast<std::size_t>(document)], 100));
        sum += length;
      }
      ASSERT_LE(sum, micro_batch_size * 100);
      ASSERT_EQ(sum, sampler.tokens_of(epoch, static_cast<std::int64_t>(i)));
      if (!packing && i + 1 < batches.size()) {
        ASSERT_EQ(batches[i].size(), static_cast<std::size_t>(micro_batch_size));
      }
      tokens += sum;
    }
    EXPECT_EQ(tokens, sampler.tokens_per_epoch());
    auto all = flat(batches);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(documents));
    if (!shuffle) {
      EXPECT_TRUE(std::ranges::is_sorted(all));
    }
    std::ranges::sort(all);
    for (std::int64_t i = 0; i < documents; ++i) ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DataSampler,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Values(1, 3, 16),
                                            ::testing::Values(1, 2, 97, 9001)));

TEST(DataSamplerOrder, DependsOnSeedEpochAndIndexAlone) {
  const auto lengths = random_lengths(5000, 60);
  const BatchOptions options{.sequence_len = 64, .micro_batch_size = 4, .seed = 3};
  const BatchSampler first(lengths, options), second(lengths, options);
  const auto epoch0 = epoch_of(first, 0), epoch1 = epoch_of(first, 1);
  EXPECT_EQ(second.documents_of(1, 17), epoch1[17]);  // epoch 1 without ever asking for epoch 0
  EXPECT_EQ(second.documents_of(0, 40), epoch0[40]);
  EXPECT_EQ(epoch_of(second, 1), epoch1);
  EXPECT_NE(epoch0, epoch1);
  const BatchSampler other(lengths, {.sequence_len = 64, .micro_batch_size = 4, .seed = 4});
  EXPECT_NE(epoch_of(other, 0), epoch0);
}

// Runs that resume rely on it: other batches than these want another packing_version.
TEST(DataSamplerOrder, StaysTheSameFromVersionToVersion) {
  const BatchSampler sampler({5, 3, 8, 1, 9, 2, 7, 4}, {.sequence_len = 10, .micro_batch_size = 1, .seed = 42});
  EXPECT_EQ(packing_version, 2);
  EXPECT_THAT(epoch_of(sampler, 0),
              ElementsAre(ElementsAre(4), ElementsAre(1), ElementsAre(0, 3, 7), ElementsAre(2), ElementsAre(6, 5)));
}

TEST(DataSamplerOrder, ShufflesEvenly) {
  // Where document 0 of 10 stands over many epochs: every place about equally often.
  const BatchSampler sampler(std::vector<std::int64_t>(10, 5),
                             {.sequence_len = 5, .micro_batch_size = 1, .sample_packing = false, .seed = 9});
  std::vector<int> count(10, 0);
  for (std::int64_t epoch = 0; epoch < 5000; ++epoch) {
    const auto order = flat(epoch_of(sampler, epoch));
    ++count[static_cast<std::size_t>(std::ranges::find(order, 0) - order.begin())];
  }
  for (const int c : count) EXPECT_NEAR(c, 500, 100);  // four and a half standard deviations
}

double variance_of_mean_length(const BatchSampler& sampler, std::int64_t epoch) {
  double sum = 0, squares = 0;
  const std::int64_t steps = sampler.batches_per_epoch(epoch);
  for (std::int64_t i = 0; i < steps; ++i) {
    const double mean =
        static_cast<double>(sampler.tokens_of(epoch, i)) / static_cast<double>(sampler.documents_of(epoch, i).size());
    sum += mean;
    squares += mean * mean;
  }
  const auto n = static_cast<double>(steps);
  return squares / n - (sum / n) * (sum / n);
}

// What packing must not change: who meets whom is chance. Chance itself is documents in a random order, cut into steps
// one after another, as files are without shuffling.
TEST(DataSamplerOrder, StepsAreAsMixedAsAShuffleMakesThemAndFull) {
  constexpr std::int64_t epochs = 20;  // of which the variances are averaged
  for (const auto& [name, lengths] : real_lengths()) {
    for (const std::int64_t sequence_len : {1024, 2048}) {
      for (const std::int64_t micro_batch_size : {1, 4}) {
        SCOPED_TRACE(name + ", " + std::to_string(micro_batch_size) + " x " + std::to_string(sequence_len));
        const BatchSampler sampler(lengths,
                                   {.sequence_len = sequence_len, .micro_batch_size = micro_batch_size, .seed = 1});
        double packed = 0, random = 0, fill = 0;
        for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
          packed += variance_of_mean_length(sampler, epoch);
          fill += sampler.efficiency(epoch);
          std::vector<std::int64_t> order = lengths;
          const Philox philox{static_cast<std::uint64_t>(100 + epoch)};
          for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(philox, i, 0, i)]);
          const BatchSampler in_order(
              order, {.sequence_len = sequence_len, .micro_batch_size = micro_batch_size, .shuffle = false});
          random += variance_of_mean_length(in_order, 0);
        }
        EXPECT_LE(packed, 1.3 * random) << packed / random;
        EXPECT_GE(fill / epochs, 0.97);
      }
    }
  }
}

TEST(DataSamplerOrder, PackingFillsBatches) {
  const BatchSampler sampler(random_lengths(20000, 2048), {.sequence_len = 2048, .micro_batch_size = 2, .seed = 1});
  EXPECT_GT(sampler.efficiency(0), 0.98);
  EXPECT_LE(sampler.efficiency(0), 1.0);
  const BatchSampler plain(random_lengths(20000, 2048),
                           {.sequence_len = 2048, .micro_batch_size = 2, .sample_packing = false, .seed = 1});
  EXPECT_EQ(plain.batches_per_epoch(0), 10000);
  EXPECT_NEAR(plain.efficiency(0), 0.5, 0.01);
}

TEST(DataSamplerOrder, UnshuffledKeepsTheFileOrder) {
  const BatchSampler packed({4, 4, 3, 9, 10, 1}, {.sequence_len = 10, .micro_batch_size = 1, .shuffle = false});
  EXPECT_THAT(epoch_of(packed, 0),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3), ElementsAre(4), ElementsAre(5)));
  EXPECT_EQ(epoch_of(packed, 0), epoch_of(packed, 3));
  const BatchSampler plain({4, 4, 3, 9, 10},
                           {.sequence_len = 10, .micro_batch_size = 2, .sample_packing = false, .shuffle = false});
  EXPECT_THAT(epoch_of(plain, 0), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

TEST(DataSamplerOversized, TruncateCutsAndCounts) {
  const BatchSampler sampler({5, 15, 10, 12}, {.sequence_len = 10, .micro_batch_size = 1, .shuffle = false});
  EXPECT_EQ(sampler.truncated_documents(), 2);
  EXPECT_EQ(sampler.truncated_tokens(), 7);
  EXPECT_EQ(sampler.dropped_documents(), 0);
  EXPECT_EQ(sampler.tokens_per_epoch(), 35);
  EXPECT_EQ(sampler.length_of(1), 10);
}

TEST(DataSamplerOversized, DropLeavesOutAndCounts) {
  const BatchSampler sampler({5, 15, 10, 12},
                             {.sequence_len = 10, .micro_batch_size = 2, .oversized = Oversized::drop});
  EXPECT_EQ(sampler.dropped_documents(), 2);
  EXPECT_EQ(sampler.truncated_documents(), 0);
  EXPECT_EQ(sampler.document_count(), 2);
  auto all = flat(epoch_of(sampler, 0));
  std::ranges::sort(all);
  EXPECT_THAT(all, ElementsAre(0, 2));
  EXPECT_THAT(user_error_of([] {
                BatchSampler({5, 6}, {.sequence_len = 4, .oversized = Oversized::drop});
              }),
              HasSubstr("all 2 documents are longer than sequence_len (4)"));
}

TEST(DataSamplerOversized, RaiseNamesTheDocument) {
  EXPECT_EQ(
      user_error_of([] {
        BatchSampler({5, 15, 20}, {.sequence_len = 10, .oversized = Oversized::raise});
      }),
      "document 2 has 15 tokens, sequence_len is 10: set sequence_len to at least 20, or excess_length_strategy to "
      "truncate, split or drop");
  EXPECT_NO_THROW(BatchSampler({5, 10}, {.sequence_len = 10, .oversized = Oversized::raise}));
}

TEST(DataSamplerOptions, NonsenseIsRefused) {
  EXPECT_EQ(user_error_of([] { BatchSampler({1}, {.sequence_len = 0}); }),
            "sequence_len: expected a positive integer, got 0");
  EXPECT_EQ(user_error_of([] { BatchSampler({1}, {.micro_batch_size = -2}); }),
            "micro_batch_size: expected a positive integer, got -2");
  EXPECT_THAT(user_error_of([] { BatchSampler({1}, {.sequence_len = 1 << 20, .micro_batch_size = 1 << 20}); }),
              HasSubstr("more than a micro-batch can have"));
  EXPECT_THAT(user_error_of([] { BatchSampler(std::vector<std::int64_t>(), {}); }), HasSubstr("no documents"));
}

TEST(DataSamplerBatch, TakesCutDocuments) {
  const Documents documents =
      Documents::of({{{1, 2, 3}, {-100, 2, 3}}, {{4, 5, 6, 7, 8}, {-100, -100, 6, 7, 8}, {1, 1, 2, 3, 4}}});
  const BatchSampler sampler(documents.lengths(), {.sequence_len = 4, .micro_batch_size = 2, .shuffle = false});
  const auto batch = read_pieces(sampler, documents, sampler.documents_of(0, 0));
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_THAT(batch[0].input_ids, ElementsAre(1, 2, 3));
  EXPECT_TRUE(batch[0].weights.empty());  // all of them are 1
  EXPECT_THAT(batch[1].input_ids, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(batch[1].labels, ElementsAre(-100, -100, 6, 7));
  EXPECT_THAT(batch[1].weights, ElementsAre(1, 1, 2, 3));
  EXPECT_EQ(pack(batch).token_count(), 7);
}

TEST(DataSamplerBatch, SplitsDocumentsIntoPiecesThatLoseNothing) {
  const Documents documents =
      Documents::of({{{1, 2, 3}, {-100, 2, 3}}, {{4, 5, 6, 7, 8, 9, 10}, {4, 5, 6, 7, 8, 9, 10}}});
  for (const bool shuffle : {false, true}) {
    const BatchSampler sampler(
        documents.lengths(),
        {.sequence_len = 3, .micro_batch_size = 1, .shuffle = shuffle, .oversized = Oversized::split});
    EXPECT_EQ(sampler.document_count(), 2);
    EXPECT_EQ(sampler.split_documents(), 1);
    EXPECT_EQ(sampler.truncated_documents(), 0);
    EXPECT_EQ(sampler.tokens_per_epoch(), 10);
    std::vector<std::int32_t> seen;
    for (std::int64_t i = 0; i < sampler.batches_per_epoch(0); ++i) {
      for (const Document& piece : read_pieces(sampler, documents, sampler.documents_of(0, i))) {
        EXPECT_LE(piece.input_ids.size(), 3u);
        EXPECT_EQ(piece.labels.front(), ignore_label);
        seen.insert(seen.end(), piece.input_ids.begin(), piece.input_ids.end());
      }
    }
    if (shuffle) std::ranges::sort(seen);
    EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  }
}

}  // namespace
}  // namespace inlay::data
