#include "study/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace inlay::study {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SetScore by_loss(double loss) { return {.loss = loss, .token_accuracy = 0.0}; }
SetScore by_accuracy(double accuracy) { return {.loss = 1 - accuracy, .choice_accuracy = accuracy}; }

// Two tasks and one held set; every number below was worked out by hand from these.
Study two_tasks(Metric metric) {
  const auto score = metric == Metric::loss ? by_loss : by_accuracy;
  Study study;
  study.tasks = {{"a", metric}, {"b", metric}};
  study.held = {{"old", Metric::loss}};
  study.methods = {"sft"};
  study.base = {{score(0.5), score(0.25)}, {by_loss(2.0)}};
  Sequence sequence;
  sequence.learning_rate = 1e-4;
  sequence.rows = {{{score(0.25), score(0.5)}, {by_loss(2.5)}}, {{score(0.375), score(0.125)}, {by_loss(3.25)}}};
  study.sequences = {sequence};
  return study;
}

TEST(StudyContinual, MetricsOfLossesByHand) {
  const Study study = two_tasks(Metric::loss);
  const SequenceScores scores = scores_of(study, study.sequences[0]);
  EXPECT_DOUBLE_EQ(scores.new_loss, (0.25 + 0.125) / 2);  // a after a, b after b
  EXPECT_DOUBLE_EQ(*scores.average_score, (0.375 + 0.125) / 2);
  EXPECT_DOUBLE_EQ(scores.average_loss, 0.25);
  EXPECT_DOUBLE_EQ(*scores.backward_transfer, -0.125);  // a's loss rose: worse, and so negative
  EXPECT_DOUBLE_EQ(*scores.loss_transfer, -0.125);
  EXPECT_DOUBLE_EQ(*scores.old_loss, 3.25);
  EXPECT_DOUBLE_EQ(*scores.forgetting, 1.25);
  EXPECT_THAT(scores.held_change, ElementsAre(1.25));
  EXPECT_EQ(metric_matrix(study, study.sequences[0]), (Matrix{{0.5, 0.25}, {0.25, 0.5}, {0.375, 0.125}}));
}

TEST(StudyContinual, MetricsOfAccuraciesByHand) {
  const Study study = two_tasks(Metric::choice_accuracy);
  const SequenceScores scores = scores_of(study, study.sequences[0]);
  EXPECT_DOUBLE_EQ(scores.new_loss, (0.75 + 0.875) / 2);
  EXPECT_DOUBLE_EQ(*scores.average_score, 0.25);
  EXPECT_DOUBLE_EQ(*scores.backward_transfer, 0.125);  // a's accuracy rose: better
  EXPECT_DOUBLE_EQ(*scores.loss_transfer, 0.125);      // its loss fell
}

TEST(StudyContinual, LossesAndAccuraciesAreNotAveraged) {
  Study study = two_tasks(Metric::choice_accuracy);
  study.tasks[1].metric = Metric::loss;
  const SequenceScores scores = scores_of(study, study.sequences[0]);
  EXPECT_FALSE(scores.average_score || scores.backward_transfer);
  EXPECT_TRUE(scores.loss_transfer);
}

TEST(StudyContinual, WithoutHeldDataTheEarlierTasksAreWhatIsForgotten) {
  Study study = two_tasks(Metric::loss);
  study.held.clear();
  for (ScoreRow* row : {&study.base, &study.sequences[0].rows[0], &study.sequences[0].rows[1]}) row->held.clear();
  const SequenceScores scores = scores_of(study, study.sequences[0]);
  EXPECT_DOUBLE_EQ(*scores.old_loss, 0.375);
  EXPECT_DOUBLE_EQ(*scores.forgetting, 0.125);

  Study one = study;  // one task and nothing held: nothing that could be forgotten
  one.tasks.pop_back();
  one.sequences[0].rows.pop_back();
  const SequenceScores alone = scores_of(one, one.sequences[0]);
  EXPECT_DOUBLE_EQ(alone.new_loss, 0.25);
  EXPECT_FALSE(alone.old_loss || alone.forgetting || alone.backward_transfer);
  EXPECT_THAT(analyse(one).methods[0].frontier, IsEmpty());
}

TEST(StudyContinual, HeldSetsMayBeShownAlone) {
  Study study = two_tasks(Metric::loss);
  study.held.push_back({"beside", Metric::loss, false});
  study.base.held.push_back(by_loss(9));
  for (ScoreRow& row : study.sequences[0].rows) row.held.push_back(by_loss(1));
  const SequenceScores scores = scores_of(study, study.sequences[0]);
  EXPECT_DOUBLE_EQ(*scores.old_loss, 3.25);
  EXPECT_DOUBLE_EQ(*scores.forgetting, 1.25);
  EXPECT_THAT(scores.held_change, ElementsAre(1.25, -8));
  study.held[0].counted = false;  // then forgetting is the earlier tasks'
  EXPECT_DOUBLE_EQ(*scores_of(study, study.sequences[0]).forgetting, 0.125);
}

TEST(StudyContinual, SpreadIsTheSampleDeviation) {
  EXPECT_DOUBLE_EQ(spread_of({1, 2, 3, 6})->mean, 3);
  EXPECT_DOUBLE_EQ(spread_of({1, 2, 3, 6})->deviation, std::sqrt((4 + 1 + 0 + 9) / 3.0));
  EXPECT_DOUBLE_EQ(spread_of({7})->deviation, 0);
  EXPECT_FALSE(spread_of({}));
}

std::vector<double> rates_of(const std::vector<FrontierPoint>& points) {
  std::vector<double> rates;
  for (const FrontierPoint& point : points) rates.push_back(point.learning_rate);
  return rates;
}

TEST(StudyContinual, TheFrontierHoldsWhatNothingBeats) {
  // 4 is beaten by 2 in both; 5 has 2's forgetting but learns less; 6 learns as much as 1 and forgets more.
  const auto frontier =
      pareto({{3.0, 0.5, 3}, {1.0, 2.0, 1}, {2.0, 1.0, 2}, {2.5, 1.5, 4}, {2.5, 1.0, 5}, {1.0, 2.5, 6}});
  EXPECT_THAT(rates_of(frontier), ElementsAre(1, 2, 3));
  EXPECT_THAT(pareto({}), IsEmpty());
}

TEST(StudyContinual, ForgettingIsInterpolatedAlongTheFrontier) {
  const std::vector<FrontierPoint> frontier = {{1.0, 2.0, 1}, {2.0, 1.0, 2}, {4.0, 0.5, 3}};
  EXPECT_DOUBLE_EQ(forgetting_at(frontier, 1.0)->forgetting, 2.0);
  EXPECT_DOUBLE_EQ(forgetting_at(frontier, 1.25)->forgetting, 1.75);
  EXPECT_DOUBLE_EQ(forgetting_at(frontier, 3.0)->forgetting, 0.75);
  EXPECT_DOUBLE_EQ(forgetting_at(frontier, 4.0)->forgetting, 0.5);
  EXPECT_FALSE(forgetting_at(frontier, 4.0)->upper_bound);
  EXPECT_FALSE(forgetting_at(frontier, 0.999)) << "so low a loss is not reached";
  EXPECT_DOUBLE_EQ(forgetting_at(frontier, 9.0)->forgetting, 0.5);
  EXPECT_TRUE(forgetting_at(frontier, 9.0)->upper_bound);
  EXPECT_FALSE(forgetting_at({}, 1.0));
}

TEST(StudyContinual, RatiosAtTheBaselinesPoints) {
  const std::vector<FrontierPoint> baseline = {{1.0, 4.0, 1}, {2.0, 2.0, 2}, {5.0, 1.0, 3}};
  const std::vector<FrontierPoint> method = {{1.5, 2.0, 4}, {3.5, 1.0, 5}};
  const auto at = ratios_at(method, baseline);
  ASSERT_THAT(at, SizeIs(3));
  EXPECT_FALSE(at[0].reached || at[0].ratio);  // the baseline's lowest: 1.0 < 1.5
  EXPECT_DOUBLE_EQ(*at[1].ratio, 1.75 / 2.0);
  EXPECT_FALSE(at[1].upper_bound);
  EXPECT_DOUBLE_EQ(*at[2].ratio, 1.0 / 1.0);
  EXPECT_TRUE(at[2].upper_bound);

  const auto harmless = ratios_at(method, {{2.0, 0.0, 1}});  // nothing to be a share of
  EXPECT_TRUE(harmless[0].reached);
  EXPECT_FALSE(harmless[0].ratio);
}

TEST(StudyContinual, RatioOverTheCommonRange) {
  // From 2 to 4. The baseline falls from 4 to 2 there: area 6. The method: 1 at 2, 2/3 at 3, 1/3 at 4: area 4/3.
  const std::vector<FrontierPoint> baseline = {{1.0, 5.0, 1}, {4.0, 2.0, 2}};
  const std::vector<FrontierPoint> method = {{2.0, 1.0, 3}, {3.0, 2.0 / 3, 4}, {5.0, 0.0, 5}};
  const auto range = ratio_over_range(method, baseline);
  ASSERT_TRUE(range);
  EXPECT_DOUBLE_EQ(range->from, 2.0);
  EXPECT_DOUBLE_EQ(range->to, 4.0);
  EXPECT_NEAR(range->ratio, (5.0 / 6 + 1.0 / 2) / 6, 1e-15);
  EXPECT_NEAR(range->highest, 1.0 / 4, 1e-15);                             // at 2
  EXPECT_NEAR(range->lowest, 1.0 / 6, 1e-15);                              // at 4
  EXPECT_FALSE(ratio_over_range(method, {{6.0, 1.0, 1}, {7.0, 0.5, 2}}));  // no loss in common
  EXPECT_FALSE(ratio_over_range(method, {{3.0, 1.0, 1}}));                 // a single point is no range
}

// One task, one held set. Each entry: method, rate, seed, new loss, old loss.
struct Entry {
  std::size_t method;
  double rate;
  std::int64_t seed;
  double new_loss, old_loss;
};

Study one_task(std::vector<std::string> methods, const std::vector<Entry>& entries) {
  Study study;
  study.tasks = {{"new", Metric::loss}};
  study.held = {{"old", Metric::loss}};
  study.methods = std::move(methods);
  study.base = {{by_loss(9)}, {by_loss(2)}};
  for (const Entry& e : entries) {
    Sequence sequence;
    sequence.method = e.method, sequence.learning_rate = e.rate, sequence.seed = e.seed;
    sequence.rows = {{{by_loss(e.new_loss)}, {by_loss(e.old_loss)}}};
    study.sequences.push_back(sequence);
  }
  return study;
}

TEST(StudyContinual, ComparesMethodsAtEqualNewLoss) {
  // Forgetting of sft: 1.0 at 3.0, 0.5 at 4.0; of ours: 0.6 at 2.0, 0.2 at 6.0. Means over two seeds.
  const Study study = one_task({"ours", "sft"}, {{1, 1e-4, 1, 3.5, 2.25},
                                                 {1, 1e-4, 2, 4.5, 2.75},
                                                 {1, 1e-3, 1, 3.0, 3.0},
                                                 {1, 1e-3, 2, 3.0, 3.0},
                                                 {1, 1e-2, 1, 3.5, 5.0},
                                                 {1, 1e-2, 2, 3.5, 5.0},
                                                 {0, 1e-3, 1, 2.0, 2.6},
                                                 {0, 1e-3, 2, 2.0, 2.6},
                                                 {0, 1e-5, 1, 6.0, 2.2},
                                                 {0, 1e-5, 2, 6.0, 2.2}});
  Study against_sft = study;
  against_sft.baseline = 1;
  const Analysis analysis = analyse(against_sft);
  EXPECT_EQ(analysis.complete, 10u);
  const MethodResult &ours = analysis.methods[0], &sft = analysis.methods[1];
  ASSERT_THAT(sft.rates, SizeIs(3));
  EXPECT_DOUBLE_EQ(sft.rates[*sft.best].learning_rate, 1e-3);
  EXPECT_DOUBLE_EQ(sft.rates[0].new_loss->mean, 4.0);
  EXPECT_DOUBLE_EQ(sft.rates[0].new_loss->deviation, std::sqrt(0.5));
  EXPECT_TRUE(sft.rates[0].on_frontier && sft.rates[1].on_frontier);
  EXPECT_FALSE(sft.rates[2].on_frontier);  // worse in both than 1e-3
  EXPECT_THAT(rates_of(sft.frontier), ElementsAre(1e-3, 1e-4));
  EXPECT_THAT(sft.at, IsEmpty());

  ASSERT_THAT(ours.at, SizeIs(2));
  EXPECT_NEAR(*ours.at[0].ratio, 0.5 / 1.0, 1e-12);  // at 3.0
  EXPECT_NEAR(*ours.at[1].ratio, 0.4 / 0.5, 1e-12);  // at 4.0
  EXPECT_NEAR(ours.over_range->ratio, 0.45 / 0.75, 1e-12);
  ASSERT_TRUE(ours.seed_ratios);
  EXPECT_THAT(ours.seed_ratios->values, SizeIs(2));
  EXPECT_NEAR(ours.seed_ratios->mean, 0.5, 1e-12);
}

// What keeps but a share of what was learned has a point for each, on one frontier.
TEST(StudyContinual, SharesAreSettingsOfTheirOwn) {
  Study study =
      one_task({"sft", "average"},
               {{0, 1e-3, 1, 3.0, 3.0}, {1, 1e-3, 1, 3.5, 2.4}, {1, 1e-3, 1, 3.2, 2.6}, {1, 1e-4, 1, 4.0, 2.5}});
  study.sequences[1].share = 0.25;
  study.sequences[2].share = 0.5;
  study.sequences[3].share = 0.25;
  const MethodResult average = analyse(study).methods[1];
  ASSERT_THAT(average.rates, SizeIs(3));
  EXPECT_EQ(average.rates[0].learning_rate, 1e-4);
  EXPECT_EQ(average.rates[1].share, 0.25);
  EXPECT_EQ(average.rates[2].share, 0.5);
  EXPECT_EQ(*average.best, 2u);
  EXPECT_FALSE(average.rates[0].on_frontier);  // 1e-3 at 0.25 is better in both
  ASSERT_THAT(average.frontier, SizeIs(2));
  EXPECT_EQ(average.frontier[0].share, 0.5);
  EXPECT_EQ(average.frontier[1].share, 0.25);
}

TEST(StudyContinual, ARateThatDivergesForOneSeedIsNotChosen) {
  Study study = one_task({"sft"}, {{0, 1e-3, 1, 3.0, 3.0}, {0, 1e-2, 1, 1.0, 2.5}, {0, 1e-2, 2, 1.0, 2.5}});
  study.sequences[2].rows.clear();
  study.sequences[2].diverged = "step 3: the loss is nan";
  const Analysis analysis = analyse(study);
  EXPECT_EQ(analysis.complete, 2u);
  EXPECT_EQ(analysis.diverged, 1u);
  const MethodResult& sft = analysis.methods[0];
  EXPECT_DOUBLE_EQ(sft.rates[*sft.best].learning_rate, 1e-3);
  EXPECT_THAT(rates_of(sft.frontier), ElementsAre(1e-3));
  EXPECT_THAT(sft.rates[1].seeds, ElementsAre(1));
  EXPECT_THAT(sft.rates[1].diverged, ElementsAre(2));
}

TEST(StudyContinual, WhatIsNotCompleteIsLeftOut) {
  Study study = one_task({"sft", "ours"}, {{0, 1e-3, 1, 3.0, 3.0}, {1, 1e-3, 1, 1.0, 2.5}});
  study.sequences[1].rows.clear();
  const Analysis analysis = analyse(study);
  EXPECT_EQ(analysis.complete, 1u);
  EXPECT_FALSE(analysis.methods[1].best || analysis.methods[1].rates[0].new_loss);
  EXPECT_FALSE(analysis.methods[1].at[0].reached);
}

}  // namespace
}  // namespace inlay::study
