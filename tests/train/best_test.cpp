#include "train/best.h"

#include <gtest/gtest.h>

namespace inlay::train {
namespace {

// Which of these evaluations, one per step, are the best so far, and after which the run stops (0: never).
struct Course {
  std::vector<std::int64_t> best;
  std::int64_t stop = 0;
};
Course course_of(const options::TrainOptions& options, const std::vector<double>& losses) {
  Course course;
  Best best;
  for (std::size_t i = 0; i < losses.size() && course.stop == 0; ++i) {
    const auto step = static_cast<std::int64_t>(i) + 1;
    if (note_evaluation(options, {.step = step, .loss = losses[i], .accuracy = losses[i]}, best)) {
      course.best.push_back(step);
    }
    if (stops_early(options, best)) course.stop = step;
  }
  return course;
}

using Steps = std::vector<std::int64_t>;

TEST(TrainBest, PatienceCountsEvaluationsInARowThatAreNoBetter) {
  options::TrainOptions options;
  options.early_stopping_patience = 2;
  Course course = course_of(options, {3, 2, 2.5, 1, 1.5, 1, 0.5});
  EXPECT_EQ(course.best, Steps({1, 2, 4}));
  EXPECT_EQ(course.stop, 6);  // equal is no better
  options.early_stopping_patience = 0;
  options.load_best_model_at_end = true;
  course = course_of(options, {3, 2, 2.5, 1, 1.5, 1, 0.5});
  EXPECT_EQ(course.best, Steps({1, 2, 4, 7}));
  EXPECT_EQ(course.stop, 0);
}

// As transformers' EarlyStoppingCallback: the least improvement is the best all the same, but does not renew patience.
TEST(TrainBest, AThresholdBearsOnPatienceAlone) {
  options::TrainOptions options;
  options.early_stopping_patience = 2;
  options.early_stopping_threshold = 0.1;
  const Course course = course_of(options, {3, 2.95, 2.9});
  EXPECT_EQ(course.best, Steps({1, 2, 3}));
  EXPECT_EQ(course.stop, 3);
  EXPECT_EQ(course_of(options, {3, 2.95, 2.8, 2.75, 2.5}).stop, 0);
}

TEST(TrainBest, TheMetricSaysWhichWayIsUp) {
  options::TrainOptions options;
  options.metric_for_best_model = options::Metric::eval_accuracy;
  EXPECT_EQ(course_of(options, {0.1, 0.3, 0.2}).best, Steps({1, 2}));
  options.greater_is_better = false;
  EXPECT_EQ(course_of(options, {0.3, 0.1, 0.2}).best, Steps({1, 2}));
  options.metric_for_best_model = options::Metric::eval_perplexity;
  options.greater_is_better.reset();
  EXPECT_EQ(course_of(options, {3, 2, 4}).best, Steps({1, 2}));
}

TEST(TrainBest, TheEvaluationBeforeTheFirstStepDoesNotCount) {
  options::TrainOptions options;
  options.load_best_model_at_end = true;
  Best best;
  EXPECT_FALSE(note_evaluation(options, {.step = 0, .loss = 1}, best));
  EXPECT_TRUE(note_evaluation(options, {.step = 1, .loss = 2}, best));
  options.load_best_model_at_end = false;
  EXPECT_FALSE(note_evaluation(options, {.step = 2, .loss = 0.5}, best));  // nobody asked
}

}  // namespace
}  // namespace inlay::train
