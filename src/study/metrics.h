#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The arithmetic of continual learning: what was learned, what was forgotten, and how methods compare. Numbers in,
// numbers out; docs/continual.md has the definitions in words.
namespace inlay::study {

enum class Metric : std::uint8_t { loss, token_accuracy, choice_accuracy, exact_match };
std::string_view name_of(Metric metric);
constexpr bool higher_is_better(Metric metric) { return metric != Metric::loss; }

// One data set under one model.
struct SetScore {
  double loss = 0;  // for questions: of the right choices' tokens
  std::optional<double> token_accuracy, choice_accuracy, exact_match;

  double value(Metric metric) const;
};

// All data sets under one model.
struct ScoreRow {
  std::vector<SetScore> tasks, held;
};

// One method at one learning rate from one seed, through the tasks in their order.
struct Sequence {
  std::size_t method = 0;
  double learning_rate = 0;
  std::optional<double> share;  // of what was learned, where the method takes the rest of it back
  std::int64_t seed = 0;
  std::vector<ScoreRow> rows;  // after each task learned so far
  std::string diverged;        // what was said where training broke down
};

struct Study {
  struct Set {
    std::string name;
    Metric metric = Metric::loss;
    bool counted = true;  // of held sets: it is part of the old loss
  };
  std::vector<Set> tasks, held;
  std::vector<std::string> methods;
  std::size_t baseline = 0;  // the method that the others are held against
  ScoreRow base;
  std::vector<Sequence> sequences;

  bool complete(const Sequence& sequence) const { return sequence.rows.size() == tasks.size(); }
  bool counts_held() const;
};
// The mean over the held sets that count of one number for each.
double mean_held(const Study& study, const std::vector<double>& values);

// Row 0 is the base model, row i the model after task i; column j is task j.
using Matrix = std::vector<std::vector<double>>;
Matrix metric_matrix(const Study& study, const Sequence& sequence);
Matrix loss_matrix(const Study& study, const Sequence& sequence);
// The same with a column for each held set.
Matrix held_metric_matrix(const Study& study, const Sequence& sequence);
Matrix held_loss_matrix(const Study& study, const Sequence& sequence);

// What a complete sequence comes to.
struct SequenceScores {
  double new_loss = 0;  // mean over tasks of the loss right after learning the task
  // After the last task: mean loss on the held sets that count, or, where there are none, on all tasks but the last.
  std::optional<double> old_loss;
  // How much of it is forgetting: old_loss less the base model's, or less what it was right after each task.
  std::optional<double> forgetting;
  double average_loss = 0;                     // over tasks, after the last
  std::optional<double> average_score;         // the same by metric; none where tasks mix losses and accuracies
  std::optional<double> backward_transfer;     // higher is better, so that losses count negated; none for one task
  std::optional<double> loss_transfer;         // the same by loss
  std::vector<double> held_loss, held_change;  // of each held set: after the last task, and against the base model
};
// Whether the tasks' metrics can be averaged: all are losses, or all accuracies.
bool metrics_alike(const Study& study);
SequenceScores scores_of(const Study& study, const Sequence& sequence);

// The mean over seeds with the sample deviation (0 for a single one).
struct Spread {
  std::vector<double> values;
  double mean = 0, deviation = 0;
};
std::optional<Spread> spread_of(std::vector<double> values);

// ---- comparing methods --------------------------------------------------------------------------------------------

struct FrontierPoint {
  double new_loss = 0, forgetting = 0, learning_rate = 0;
  std::optional<double> share = {};
};
// The points that no other one beats in both, by rising new_loss (and so by falling forgetting).
std::vector<FrontierPoint> pareto(std::vector<FrontierPoint> points);

// The forgetting of a method where its new-task loss is the given one: by linear interpolation along the frontier.
// Nothing where the method does not reach so low a loss. Where even its largest new_loss is lower, that point's
// forgetting is an upper bound: it learns more and forgets that much.
struct Reached {
  double forgetting = 0;
  bool upper_bound = false;
};
std::optional<Reached> forgetting_at(const std::vector<FrontierPoint>& frontier, double new_loss);

// One method's forgetting as a share of the baseline's, where both have the same new-task loss.
struct RatioAt {
  double new_loss = 0, learning_rate = 0;  // of the baseline's point
  std::optional<double> share = {};
  bool reached = false;         // whether the method learns as much
  std::optional<double> ratio;  // none where it does not, or where the baseline forgets nothing
  bool upper_bound = false;
};
std::vector<RatioAt> ratios_at(const std::vector<FrontierPoint>& frontier, const std::vector<FrontierPoint>& baseline);

// The same over all losses that both frontiers reach: the areas under them, and the extremes between.
struct RatioOverRange {
  double from = 0, to = 0;
  double ratio = 0, lowest = 0, highest = 0;
};
std::optional<RatioOverRange> ratio_over_range(const std::vector<FrontierPoint>& frontier,
                                               const std::vector<FrontierPoint>& baseline);

// ---- the whole of it ----------------------------------------------------------------------------------------------

// A method at one learning rate (and share), over its complete seeds.
struct RateResult {
  double learning_rate = 0;
  std::optional<double> share;
  std::vector<std::int64_t> seeds, diverged;  // complete ones; those where training broke down
  bool on_frontier = false;
  // All absent where no seed is complete.
  std::optional<Spread> new_loss, old_loss, forgetting, average_loss, average_score, backward_transfer, loss_transfer;
  std::vector<Spread> held_loss, held_change;

  // By metric, or by loss where the tasks' metrics cannot be averaged.
  const std::optional<Spread>& average_shown() const { return average_score ? average_score : average_loss; }
  const std::optional<Spread>& transfer_shown() const { return average_score ? backward_transfer : loss_transfer; }

  // Means over seeds. Columns are the tasks; of held_metrics and held_losses the held sets.
  Matrix metrics, losses, held_metrics, held_losses;
};

struct MethodResult {
  std::string name;
  std::vector<RateResult> rates;        // by rising learning rate, then share
  std::optional<std::size_t> best;      // the rate of lowest new_loss; one where a seed diverged does not count
  std::vector<FrontierPoint> frontier;  // of the means over seeds
  // Against the baseline; empty for the baseline itself. at[0] is at the baseline's lowest new-task loss.
  std::vector<RatioAt> at;
  std::optional<RatioOverRange> over_range;
  std::optional<Spread> seed_ratios;  // at[0] seed by seed, of the seeds where it exists
};

struct Analysis {
  std::vector<MethodResult> methods;
  std::size_t complete = 0, diverged = 0;  // sequences
};
Analysis analyse(const Study& study);

}  // namespace inlay::study
