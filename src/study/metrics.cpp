#include "study/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/error.h"

namespace inlay::study {

namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// By each set's metric, or by loss throughout.
enum class Measure : std::uint8_t { metric, loss };

Matrix make_matrix(const Study& study, const Sequence& sequence, std::vector<SetScore> ScoreRow::*scores,
                   const std::vector<Study::Set>& sets, Measure measure) {
  Matrix matrix;
  const auto add = [&](const ScoreRow& row) {
    std::vector<double> values;
    for (std::size_t j = 0; j < sets.size(); ++j) {
      values.push_back((row.*scores)[j].value(measure == Measure::loss ? Metric::loss : sets[j].metric));
    }
    matrix.push_back(std::move(values));
  };
  add(study.base);
  for (const ScoreRow& row : sequence.rows) add(row);
  return matrix;
}

// Mean over the earlier tasks of how much better they are in the end than right after they were learned.
std::optional<double> transfer(const Matrix& matrix, double sign) {
  const std::size_t tasks = matrix[0].size();
  if (tasks < 2) return std::nullopt;
  double sum = 0;
  for (std::size_t j = 0; j + 1 < tasks; ++j) sum += sign * (matrix[tasks][j] - matrix[j + 1][j]);
  return sum / static_cast<double>(tasks - 1);
}

std::vector<double> held_losses(const ScoreRow& row) {
  std::vector<double> losses;
  for (const SetScore& score : row.held) losses.push_back(score.loss);
  return losses;
}

Matrix mean_matrix(const std::vector<Matrix>& matrices) {
  Matrix mean = matrices[0];
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t j = 0; j < mean[i].size(); ++j) {
      double sum = 0;
      for (const Matrix& matrix : matrices) sum += matrix[i][j];
      mean[i][j] = sum / static_cast<double>(matrices.size());
    }
  }
  return mean;
}

// One number a sequence, where all of them have it.
template <class Get>
std::optional<Spread> over(const std::vector<SequenceScores>& scores, Get&& get) {
  std::vector<double> values;
  for (const SequenceScores& s : scores) {
    const std::optional<double> value = get(s);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return spread_of(std::move(values));
}

void summarise(RateResult& result, const Study& study, const std::vector<const Sequence*>& complete) {
  if (complete.empty()) return;
  std::vector<SequenceScores> scores;
  std::vector<Matrix> metrics, losses, held_metrics, held_losses;
  for (const Sequence* sequence : complete) {
    scores.push_back(scores_of(study, *sequence));
    metrics.push_back(metric_matrix(study, *sequence));
    losses.push_back(loss_matrix(study, *sequence));
    held_metrics.push_back(held_metric_matrix(study, *sequence));
    held_losses.push_back(held_loss_matrix(study, *sequence));
  }
  result.new_loss = over(scores, [](const SequenceScores& s) { return std::optional(s.new_loss); });
  result.average_loss = over(scores, [](const SequenceScores& s) { return std::optional(s.average_loss); });
  result.old_loss = over(scores, [](const SequenceScores& s) { return s.old_loss; });
  result.forgetting = over(scores, [](const SequenceScores& s) { return s.forgetting; });
  result.average_score = over(scores, [](const SequenceScores& s) { return s.average_score; });
  result.backward_transfer = over(scores, [](const SequenceScores& s) { return s.backward_transfer; });
  result.loss_transfer = over(scores, [](const SequenceScores& s) { return s.loss_transfer; });
  for (std::size_t h = 0; h < study.held.size(); ++h) {
    result.held_loss.push_back(*over(scores, [&](const SequenceScores& s) { return std::optional(s.held_loss[h]); }));
    result.held_change.push_back(
        *over(scores, [&](const SequenceScores& s) { return std::optional(s.held_change[h]); }));
  }
  result.metrics = mean_matrix(metrics);
  result.losses = mean_matrix(losses);
  result.held_metrics = mean_matrix(held_metrics);
  result.held_losses = mean_matrix(held_losses);
}

using Setting = std::pair<double, std::optional<double>>;  // learning rate and share

template <class Of>
Setting setting_of(const Of& of) {
  return {of.learning_rate, of.share};
}

RateResult rate_result(const Study& study, std::size_t method, const Setting& setting) {
  RateResult result;
  std::tie(result.learning_rate, result.share) = setting;
  std::vector<const Sequence*> complete;
  for (const Sequence& sequence : study.sequences) {
    if (sequence.method != method || setting_of(sequence) != setting) continue;
    if (!sequence.diverged.empty()) result.diverged.push_back(sequence.seed);
    if (!study.complete(sequence)) continue;
    complete.push_back(&sequence);
    result.seeds.push_back(sequence.seed);
  }
  summarise(result, study, complete);
  return result;
}

// A rate that breaks down for some seed is not one to choose, however well the others did.
bool eligible(const RateResult& rate) { return rate.new_loss.has_value() && rate.diverged.empty(); }

MethodResult method_result(const Study& study, std::size_t method) {
  MethodResult result;
  result.name = study.methods[method];
  std::set<Setting> settings;
  for (const Sequence& sequence : study.sequences) {
    if (sequence.method == method) settings.insert(setting_of(sequence));
  }
  std::vector<FrontierPoint> points;
  for (const Setting& setting : settings) {
    result.rates.push_back(rate_result(study, method, setting));
    const RateResult& last = result.rates.back();
    if (!eligible(last)) continue;
    const std::size_t index = result.rates.size() - 1;
    if (!result.best || last.new_loss->mean < result.rates[*result.best].new_loss->mean) result.best = index;
    if (last.forgetting) points.push_back({last.new_loss->mean, last.forgetting->mean, last.learning_rate, last.share});
  }
  result.frontier = pareto(std::move(points));
  for (RateResult& rate : result.rates) {
    rate.on_frontier = std::any_of(result.frontier.begin(), result.frontier.end(),
                                   [&](const FrontierPoint& p) { return setting_of(p) == setting_of(rate); });
  }
  return result;
}

// The frontier of one seed alone, over the rates that count.
std::vector<FrontierPoint> seed_frontier(const MethodResult& method, std::int64_t seed) {
  std::vector<FrontierPoint> points;
  for (const RateResult& rate : method.rates) {
    const auto found = std::find(rate.seeds.begin(), rate.seeds.end(), seed);
    if (!eligible(rate) || found == rate.seeds.end() || !rate.forgetting) continue;
    const auto index = static_cast<std::size_t>(found - rate.seeds.begin());
    points.push_back({rate.new_loss->values[index], rate.forgetting->values[index], rate.learning_rate, rate.share});
  }
  return pareto(std::move(points));
}

void compare(MethodResult& method, const MethodResult& baseline, const std::set<std::int64_t>& seeds) {
  method.at = ratios_at(method.frontier, baseline.frontier);
  method.over_range = ratio_over_range(method.frontier, baseline.frontier);
  std::vector<double> ratios;
  for (const std::int64_t seed : seeds) {
    const std::vector<RatioAt> at = ratios_at(seed_frontier(method, seed), seed_frontier(baseline, seed));
    if (!at.empty() && at[0].ratio) ratios.push_back(*at[0].ratio);
  }
  method.seed_ratios = spread_of(std::move(ratios));
}

}  // namespace

std::string_view name_of(Metric metric) {
  switch (metric) {
    case Metric::loss: return "loss";
    case Metric::token_accuracy: return "token_accuracy";
    case Metric::choice_accuracy: return "choice_accuracy";
    case Metric::exact_match: return "exact_match";
  }
  return "";
}

double SetScore::value(Metric metric) const {
  if (metric == Metric::loss) return loss;
  const std::optional<double>& accuracy = metric == Metric::token_accuracy    ? token_accuracy
                                          : metric == Metric::choice_accuracy ? choice_accuracy
                                                                              : exact_match;
  INLAY_ASSERT(accuracy.has_value(), "a data set was not scored by {}", name_of(metric));
  return *accuracy;
}

Matrix metric_matrix(const Study& study, const Sequence& sequence) {
  return make_matrix(study, sequence, &ScoreRow::tasks, study.tasks, Measure::metric);
}

Matrix loss_matrix(const Study& study, const Sequence& sequence) {
  return make_matrix(study, sequence, &ScoreRow::tasks, study.tasks, Measure::loss);
}

Matrix held_metric_matrix(const Study& study, const Sequence& sequence) {
  return make_matrix(study, sequence, &ScoreRow::held, study.held, Measure::metric);
}

Matrix held_loss_matrix(const Study& study, const Sequence& sequence) {
  return make_matrix(study, sequence, &ScoreRow::held, study.held, Measure::loss);
}

bool Study::counts_held() const { return std::ranges::any_of(held, &Set::counted); }

double mean_held(const Study& study, const std::vector<double>& values) {
  std::vector<double> counted;
  for (std::size_t h = 0; h < values.size(); ++h) {
    if (study.held[h].counted) counted.push_back(values[h]);
  }
  return mean_of(counted);
}

bool metrics_alike(const Study& study) {
  return std::all_of(study.tasks.begin(), study.tasks.end(), [&](const Study::Set& task) {
    return higher_is_better(task.metric) == higher_is_better(study.tasks[0].metric);
  });
}

SequenceScores scores_of(const Study& study, const Sequence& sequence) {
  INLAY_ASSERT(study.complete(sequence), "{} of {} tasks are learned", sequence.rows.size(), study.tasks.size());
  const std::size_t tasks = study.tasks.size();
  const Matrix metrics = metric_matrix(study, sequence), losses = loss_matrix(study, sequence);
  SequenceScores scores;
  for (std::size_t j = 0; j < tasks; ++j) scores.new_loss += losses[j + 1][j] / static_cast<double>(tasks);
  scores.average_loss = mean_of(losses[tasks]);
  scores.loss_transfer = transfer(losses, -1);
  if (metrics_alike(study)) {
    scores.average_score = mean_of(metrics[tasks]);
    scores.backward_transfer = transfer(metrics, higher_is_better(study.tasks[0].metric) ? 1 : -1);
  }
  scores.held_loss = held_losses(sequence.rows.back());
  for (std::size_t h = 0; h < study.held.size(); ++h) {
    scores.held_change.push_back(scores.held_loss[h] - study.base.held[h].loss);
  }
  if (study.counts_held()) {
    scores.old_loss = mean_held(study, scores.held_loss);
    scores.forgetting = mean_held(study, scores.held_change);
  } else if (tasks > 1) {
    scores.old_loss = mean_of({losses[tasks].begin(), losses[tasks].end() - 1});
    scores.forgetting = -*scores.loss_transfer;
  }
  return scores;
}

std::optional<Spread> spread_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  Spread spread{.values = std::move(values)};
  spread.mean = mean_of(spread.values);
  if (spread.values.size() > 1) {
    double squares = 0;
    for (const double value : spread.values) squares += (value - spread.mean) * (value - spread.mean);
    spread.deviation = std::sqrt(squares / static_cast<double>(spread.values.size() - 1));
  }
  return spread;
}

std::vector<FrontierPoint> pareto(std::vector<FrontierPoint> points) {
  std::sort(points.begin(), points.end(), [](const FrontierPoint& a, const FrontierPoint& b) {
    return std::tie(a.new_loss, a.forgetting, a.learning_rate, a.share) <
           std::tie(b.new_loss, b.forgetting, b.learning_rate, b.share);
  });
  std::vector<FrontierPoint> frontier;
  for (const FrontierPoint& point : points) {
    if (frontier.empty() || point.forgetting < frontier.back().forgetting) frontier.push_back(point);
  }
  return frontier;
}

std::optional<Reached> forgetting_at(const std::vector<FrontierPoint>& frontier, double new_loss) {
  if (frontier.empty() || new_loss < frontier.front().new_loss) return std::nullopt;
  const auto right = std::find_if(frontier.begin(), frontier.end(),
                                  [&](const FrontierPoint& point) { return point.new_loss >= new_loss; });
  if (right == frontier.end()) return Reached{.forgetting = frontier.back().forgetting, .upper_bound = true};
  if (right->new_loss == new_loss) return Reached{.forgetting = right->forgetting};
  const FrontierPoint& left = *(right - 1);
  const double share = (new_loss - left.new_loss) / (right->new_loss - left.new_loss);
  return Reached{.forgetting = left.forgetting + share * (right->forgetting - left.forgetting)};
}

std::vector<RatioAt> ratios_at(const std::vector<FrontierPoint>& frontier, const std::vector<FrontierPoint>& baseline) {
  std::vector<RatioAt> result;
  for (const FrontierPoint& point : baseline) {
    RatioAt at{.new_loss = point.new_loss, .learning_rate = point.learning_rate, .share = point.share};
    const std::optional<Reached> reached = forgetting_at(frontier, point.new_loss);
    at.reached = reached.has_value();
    if (reached && point.forgetting > 0) {
      at.ratio = reached->forgetting / point.forgetting;
      at.upper_bound = reached->upper_bound;
    }
    result.push_back(at);
  }
  return result;
}

std::optional<RatioOverRange> ratio_over_range(const std::vector<FrontierPoint>& frontier,
                                               const std::vector<FrontierPoint>& baseline) {
  if (frontier.empty() || baseline.empty()) return std::nullopt;
  const double from = std::max(frontier.front().new_loss, baseline.front().new_loss);
  const double to = std::min(frontier.back().new_loss, baseline.back().new_loss);
  if (!(from < to)) return std::nullopt;
  // Both are straight between these losses, and so is each area; the ratio of two straight lines is monotone between
  // them, so that its extremes stand at these losses too.
  std::set<double> corners = {from, to};
  for (const auto* points : {&frontier, &baseline}) {
    for (const FrontierPoint& point : *points) {
      if (point.new_loss > from && point.new_loss < to) corners.insert(point.new_loss);
    }
  }
  RatioOverRange range{.from = from, .to = to};
  double area = 0, baseline_area = 0, last = 0, last_ours = 0, last_theirs = 0;
  for (const double loss : corners) {
    const double ours = forgetting_at(frontier, loss)->forgetting, theirs = forgetting_at(baseline, loss)->forgetting;
    if (!(theirs > 0)) return std::nullopt;
    const double ratio = ours / theirs;
    if (loss == from) {
      range.lowest = range.highest = ratio;
    } else {
      area += (ours + last_ours) / 2 * (loss - last);
      baseline_area += (theirs + last_theirs) / 2 * (loss - last);
    }
    range.lowest = std::min(range.lowest, ratio);
    range.highest = std::max(range.highest, ratio);
    last = loss, last_ours = ours, last_theirs = theirs;
  }
  range.ratio = area / baseline_area;
  return range;
}

Analysis analyse(const Study& study) {
  Analysis analysis;
  std::set<std::int64_t> seeds;
  for (const Sequence& sequence : study.sequences) {
    seeds.insert(sequence.seed);
    analysis.complete += study.complete(sequence) ? 1 : 0;
    analysis.diverged += sequence.diverged.empty() ? 0 : 1;
  }
  for (std::size_t m = 0; m < study.methods.size(); ++m) analysis.methods.push_back(method_result(study, m));
  for (std::size_t m = 0; m < study.methods.size(); ++m) {
    if (m != study.baseline) compare(analysis.methods[m], analysis.methods[study.baseline], seeds);
  }
  return analysis;
}

}  // namespace inlay::study
