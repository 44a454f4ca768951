#include "train/deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/imaginary_model.h"
#include "support/lengths.h"
#include "train/batch_stream.h"

// Who computes which documents of a step.
namespace inlay::testing {
namespace {

using ::testing::ElementsAre;
using train::Deal;
using train::DealCost;
using train::DealItem;
using train::StepTeam;

// Of a model of 8 billion parameters: attention costs a document of 8192 tokens a fifth of what its products do.
constexpr DealCost cost_8b = {.token = 1, .square = 0.2 / 8192, .pass = 200};

data::BatchSampler sampler_of(const std::vector<std::int64_t>& lengths, std::int64_t sequence_len,
                              std::int64_t micro_batch_size = 1, bool packing = true) {
  return {lengths,
          {.sequence_len = sequence_len, .micro_batch_size = micro_batch_size, .sample_packing = packing, .seed = 1}};
}

// A micro-batch of every rank holds no more than one of the sampler's may, and every piece stands in one of them.
void expect_dealt(const data::BatchSampler& sampler, const train::DealtStep& step, int ranks) {
  ASSERT_EQ(step.deal.ranks.size(), static_cast<std::size_t>(ranks));
  std::vector<std::size_t> seen;
  for (std::size_t rank = 0; rank < step.deal.ranks.size(); ++rank) {
    double cost = 0;
    for (const auto& batch : step.deal.ranks[rank]) {
      ASSERT_FALSE(batch.empty());
      ASSERT_TRUE(std::ranges::is_sorted(batch));
      std::int64_t tokens = 0;
      for (const std::size_t place : batch) {
        const std::int64_t length = sampler.length_of(step.pieces[place]);
        tokens += length;
        cost += cost_8b.of(length);
      }
      ASSERT_LE(tokens, sampler.max_tokens());
      if (!sampler.options().sample_packing) {
        ASSERT_LE(batch.size(), static_cast<std::size_t>(sampler.options().micro_batch_size));
      }
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    ASSERT_NEAR(step.deal.costs[rank], cost, 1e-9 * cost);
  }
  std::ranges::sort(seen);
  std::vector<std::size_t> all(step.pieces.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  ASSERT_EQ(seen, all);
}

class TrainDeal : public ::testing::TestWithParam<int> {};

TEST_P(TrainDeal, EveryDocumentOnceAndNoMicroBatchTooLarge) {
  const int ranks = GetParam();
  for (const bool packing : {true, false}) {
    for (const std::int64_t longest : {20, 90, 150}) {
      const auto sampler = sampler_of(random_lengths(700, longest), 100, 3, packing);
      for (const bool whole : {false, true}) {
        const StepTeam team{.size = ranks, .cost = cost_8b, .whole_batches = whole};
        const std::int64_t batches = sampler.batches_per_epoch(0), step = 2 * ranks;
        for (std::int64_t first = 0; first < batches; first += step) {
          const std::int64_t count = std::min(step, batches - first);
          const train::DealtStep dealt = train::deal_step(sampler, 0, first, count, team);
          expect_dealt(sampler, dealt, ranks);
          // Never more passes than the sampler's micro-batches would take, but for one where it pays.
          EXPECT_LE(dealt.deal.passes(), (count + ranks - 1) / ranks + (whole ? 0 : 1));
        }
      }
    }
  }
}

TEST_P(TrainDeal, AnotherRankDealsTheSame) {
  const auto sampler = sampler_of(random_lengths(300, 80), 100), other = sampler_of(random_lengths(300, 80), 100);
  const train::DealtStep mine = train::deal_step(sampler, 0, 5, 16, {.rank = 0, .size = GetParam(), .cost = cost_8b});
  const train::DealtStep theirs =
      train::deal_step(other, 0, 5, 16, {.rank = GetParam() - 1, .size = GetParam(), .cost = cost_8b});
  EXPECT_EQ(mine.pieces, theirs.pieces);
  EXPECT_EQ(mine.deal.ranks, theirs.deal.ranks);
}

TEST_P(TrainDeal, TheStepsHoldTheSameDocumentsOnAnyNumberOfRanks) {
  const auto sampler = sampler_of(random_lengths(300, 80), 100);
  const auto pieces = train::deal_step(sampler, 0, 8, 8, {.size = GetParam(), .cost = cost_8b}).pieces;
  EXPECT_EQ(pieces, train::deal_step(sampler, 0, 8, 8, {}).pieces);
}

// Those of one micro-batch stay together, in a rank that has nothing else in it.
TEST_P(TrainDeal, WholeMicroBatchesStayWhole) {
  const auto sampler = sampler_of(random_lengths(300, 80), 100);
  const train::DealtStep step =
      train::deal_step(sampler, 0, 0, 11, {.size = GetParam(), .cost = cost_8b, .whole_batches = true});
  std::size_t batches = 0;
  for (const auto& rank : step.deal.ranks) {
    for (const auto& batch : rank) {
      const std::size_t from = step.batch_of[batch.front()];
      const auto expected = sampler.documents_of(0, static_cast<std::int64_t>(from));
      std::vector<std::int64_t> pieces;
      for (const std::size_t place : batch) pieces.push_back(step.pieces[place]);
      EXPECT_EQ(pieces, expected);
      ++batches;
    }
  }
  EXPECT_EQ(batches, 11u);
}

INSTANTIATE_TEST_SUITE_P(, TrainDeal, ::testing::Values(1, 2, 3, 4, 8));

TEST(TrainDealOfItems, OneRankHasTheSamplersOwnMicroBatches) {
  const std::vector<DealItem> items = {{1, 1}, {9, 9}, {2, 2}, {8, 8}};
  const Deal deal = deal_whole(items, std::vector<std::size_t>{0, 0, 1, 1}, 1);
  ASSERT_EQ(deal.ranks.size(), 1u);
  EXPECT_THAT(deal.ranks[0], ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(deal.imbalance(), 0);
}

TEST(TrainDealOfItems, ThereMayBeFewerDocumentsThanRanks) {
  const Deal deal = deal_items(std::vector<DealItem>{{5, 5}, {3, 3}}, std::vector<std::size_t>{0, 0}, 10, 4, 0);
  EXPECT_THAT(deal.ranks[0], ElementsAre(ElementsAre(0)));
  EXPECT_THAT(deal.ranks[1], ElementsAre(ElementsAre(1)));
  EXPECT_TRUE(deal.ranks[2].empty() && deal.ranks[3].empty());
  EXPECT_EQ(deal.passes(), 1);
  EXPECT_EQ(deal.before(3), 2);
  EXPECT_DOUBLE_EQ(deal.imbalance(), 5 / 2.0 - 1);
}

// Longest first, 30 would fit nowhere: 40 and 35 have taken three quarters of both.
TEST(TrainDealOfItems, FullMicroBatchesNeedNoSecondPass) {
  std::vector<DealItem> items;
  for (const int size : {40, 40, 20, 35, 35, 30}) items.push_back({size, static_cast<double>(size)});
  const Deal deal = deal_items(items, std::vector<std::size_t>{0, 0, 0, 1, 1, 1}, 100, 2, 10);
  EXPECT_EQ(deal.passes(), 1);
  EXPECT_EQ(deal.imbalance(), 0);
}

// 3, 3 | 2, 2, 2 is even; longest first makes 3, 2, 2 and 3, 2 of it.
TEST(TrainDealOfItems, ExchangesMakeUpForWhatLongestFirstCannotKnow) {
  std::vector<DealItem> items;
  for (const int size : {3, 3, 2, 2, 2}) items.push_back({size, static_cast<double>(size)});
  EXPECT_EQ(deal_items(items, std::vector<std::size_t>{0, 0, 0, 0, 0}, 12, 2, 0).imbalance(), 0);
}

// Both micro-batches are full, but one long document's attention costs what many short ones' does not: the rank with
// these takes more tokens, in two passes, unless a pass is too dear.
TEST(TrainDealOfItems, ASecondPassIsMadeWhereItPays) {
  std::vector<DealItem> items = {{100, 150}};
  std::vector<std::size_t> batch_of = {0};
  for (std::size_t i = 0; i < 30; ++i) {
    items.push_back({10, 10});
    batch_of.push_back(1 + i / 10);
  }
  const auto passes = [&](double pass_cost) { return deal_items(items, batch_of, 100, 4, pass_cost).passes(); };
  EXPECT_EQ(passes(1000), 1);
  items[0] = {100, 100};  // the squares of short ones are what counts now
  for (std::size_t i = 1; i <= 10; ++i) items[i].cost = 40;
  EXPECT_EQ(passes(1000), 1);
  EXPECT_EQ(passes(1), 2);
}

TEST(TrainDealOfItems, ADocumentThatIsTooLongHasAMicroBatchOfItsOwn) {
  const Deal deal =
      deal_items(std::vector<DealItem>{{3, 3}, {25, 25}, {4, 4}}, std::vector<std::size_t>{0, 1, 2}, 10, 2, 0);
  EXPECT_THAT(deal.ranks[0], ElementsAre(ElementsAre(1)));
  EXPECT_THAT(deal.ranks[1], ElementsAre(ElementsAre(0, 2)));
}

// Eight ranks finish together on real documents: what they wait is far below the 3 % that is asked for.
TEST(TrainDealOfItems, RanksFinishTogetherOnRealDocuments) {
  for (const auto& [name, lengths] : real_lengths()) {
    for (const std::int64_t sequence_len : {2048, 4096, 8192}) {
      for (const std::int64_t micro_batch_size : {1, 2}) {
        for (const std::int64_t accumulation : {1, 4}) {
          const auto sampler = sampler_of(lengths, sequence_len, micro_batch_size);
          const double imbalance = train::mean_imbalance(sampler, 8 * accumulation, {.size = 8, .cost = cost_8b});
          // Of the log-normal ones some are as long as a micro-batch: whoever has such a one has nothing to give away.
          const bool bounded_by_one = name == "log-normal" && accumulation == 1;
          EXPECT_LE(imbalance, bounded_by_one ? 0.05 : 0.003)
              << name << ", " << micro_batch_size << " x " << sequence_len << " x " << accumulation;
        }
      }
    }
  }
}

TEST(TrainDealOfItems, CostsAreThoseOfThePlan) {
  train::EngineOptions options = {.device = Device::cuda, .compute = DType::bf16};
  options.max_tokens = options.max_document = 4096;
  const train::MemoryPlan plan = train::Engine::plan(imaginary_model(2), options);
  const DealCost cost = train::deal_cost(plan);
  const backend::Work work = plan.cost.model();
  EXPECT_DOUBLE_EQ(cost.of(4096), work.product_flops() / 655e12 + work.bytes / 4.2e12 + work.attention / 515e12);
  EXPECT_DOUBLE_EQ(cost.square * 4096 * 4096, work.attention / 515e12);
  EXPECT_EQ(cost.pass, 200 * cost.token);
}

}  // namespace
}  // namespace inlay::testing
