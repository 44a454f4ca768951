#include "study/results.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "study/options.h"

namespace inlay::study {

using nlohmann::ordered_json;

namespace {

// ---- rows ---------------------------------------------------------------------------------------------------------

ordered_json to_json(const SetScore& score) {
  ordered_json json = {{"loss", score.loss}};
  if (score.token_accuracy) json["token_accuracy"] = *score.token_accuracy;
  if (score.choice_accuracy) json["choice_accuracy"] = *score.choice_accuracy;
  if (score.exact_match) json["exact_match"] = *score.exact_match;
  return json;
}

SetScore read_score(const io::Json& json) {
  return {.loss = json.number("loss"),
          .token_accuracy = json.find_number("token_accuracy"),
          .choice_accuracy = json.find_number("choice_accuracy"),
          .exact_match = json.find_number("exact_match")};
}

ordered_json to_json(const Study& study, const ScoreRow& row) {
  ordered_json tasks = ordered_json::object(), held = ordered_json::object();
  for (std::size_t j = 0; j < study.tasks.size(); ++j) tasks[study.tasks[j].name] = to_json(row.tasks[j]);
  for (std::size_t h = 0; h < study.held.size(); ++h) held[study.held[h].name] = to_json(row.held[h]);
  return {{"tasks", tasks}, {"held", held}};
}

// ---- results.json -------------------------------------------------------------------------------------------------

ordered_json to_json(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"mean", spread->mean}, {"deviation", spread->deviation}, {"values", spread->values}};
}

// Where a method's models keep but a share of what was learned, its points have that beside the learning rate.
ordered_json with_share(ordered_json json, const std::optional<double>& share) {
  if (share) json["share"] = *share;
  return json;
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json to_json(const std::vector<Study::Set>& sets) {
  ordered_json json = ordered_json::array();
  for (const Study::Set& set : sets) {
    json.push_back(
        {{"name", set.name}, {"metric", name_of(set.metric)}, {"higher_is_better", higher_is_better(set.metric)}});
  }
  return json;
}

std::vector<double> column(const Matrix& matrix, std::size_t index) {
  std::vector<double> values;
  for (const std::vector<double>& row : matrix) values.push_back(row[index]);
  return values;
}

ordered_json to_json(const Study& study, const RateResult& rate) {
  ordered_json held = ordered_json::object();
  for (std::size_t h = 0; h < rate.held_loss.size(); ++h) {
    held[study.held[h].name] = {{"loss", to_json(rate.held_loss[h])},
                                {"change", to_json(rate.held_change[h])},
                                {"metric_over_tasks", column(rate.held_metrics, h)},
                                {"loss_over_tasks", column(rate.held_losses, h)}};
  }
  ordered_json json;
  json["learning_rate"] = rate.learning_rate;
  if (rate.share) json["share"] = *rate.share;
  json.update({{"seeds", rate.seeds},
               {"diverged_seeds", rate.diverged},
               {"new_loss", to_json(rate.new_loss)},
               {"old_loss", to_json(rate.old_loss)},
               {"forgetting", to_json(rate.forgetting)},
               {"average_score", to_json(rate.average_score)},
               {"average_loss", to_json(rate.average_loss)},
               {"backward_transfer", to_json(rate.backward_transfer)},
               {"backward_transfer_of_losses", to_json(rate.loss_transfer)},
               {"on_frontier", rate.on_frontier},
               {"held", held},
               {"matrix", rate.metrics},
               {"loss_matrix", rate.losses}});
  return json;
}

ordered_json to_json(const RatioAt& at) {
  ordered_json json = {{"new_loss", at.new_loss}, {"baseline_learning_rate", at.learning_rate}};
  if (at.share) json["baseline_share"] = *at.share;
  json.update({{"reached", at.reached}, {"ratio", or_null(at.ratio)}, {"upper_bound", at.upper_bound}});
  return json;
}

ordered_json comparison_json(const MethodResult& method) {
  ordered_json at = ordered_json::array();
  for (const RatioAt& point : method.at) at.push_back(to_json(point));
  ordered_json range;
  if (method.over_range) {
    range = {{"from", method.over_range->from},
             {"to", method.over_range->to},
             {"ratio", method.over_range->ratio},
             {"lowest", method.over_range->lowest},
             {"highest", method.over_range->highest}};
  }
  return {{"at_best_tuned_baseline", at.empty() ? ordered_json(nullptr) : at[0]},
          {"at_best_tuned_baseline_by_seed", to_json(method.seed_ratios)},
          {"at_baseline_frontier", at},
          {"over_range", range}};
}

ordered_json to_json(const Study& study, const MethodResult& method, bool baseline) {
  ordered_json rates = ordered_json::array(), frontier = ordered_json::array();
  for (const RateResult& rate : method.rates) rates.push_back(to_json(study, rate));
  for (const FrontierPoint& point : method.frontier) {
    frontier.push_back(with_share(
        {{"learning_rate", point.learning_rate}, {"new_loss", point.new_loss}, {"forgetting", point.forgetting}},
        point.share));
  }
  ordered_json json = {{"name", method.name},
                       {"best_learning_rate",
                        method.best ? ordered_json(method.rates[*method.best].learning_rate) : ordered_json(nullptr)}};
  if (method.best && method.rates[*method.best].share) json["best_share"] = *method.rates[*method.best].share;
  json["frontier"] = frontier;
  if (!baseline) json["forgetting_against_baseline"] = comparison_json(method);
  json["learning_rates"] = rates;
  return json;
}

ordered_json to_json(const Study& study, const Sequence& sequence) {
  ordered_json rows = ordered_json::array();
  for (const ScoreRow& row : sequence.rows) rows.push_back(to_json(study, row));
  ordered_json json = with_share(
      {{"method", study.methods[sequence.method]}, {"learning_rate", sequence.learning_rate}}, sequence.share);
  json.update({{"seed", sequence.seed}, {"complete", study.complete(sequence)}, {"rows", rows}});
  if (!sequence.diverged.empty()) json["diverged"] = sequence.diverged;
  return json;
}

// ---- the table ----------------------------------------------------------------------------------------------------

// Characters on the screen, not bytes: ± is one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// Columns as wide as their widest cell; the first to the left, the others to the right.
std::string layout(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - width_of(row[c]), ' ');
      line += (c == 0 ? row[c] + space : "  " + space + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string cell(const std::optional<Spread>& spread, bool sign = false) {
  return spread ? spread_text(*spread, 3, sign) : "";
}

std::string seeds_text(const RateResult& rate) {
  if (rate.diverged.empty()) return fmt::format("{}", rate.seeds.size());
  return fmt::format("{}, {} diverged", rate.seeds.size(), rate.diverged.size());
}

std::string rates_table(const Study& study, const Analysis& analysis) {
  std::vector<std::vector<std::string>> rows = {
      {"method", "learning rate", "seeds", "new loss", "old loss", "forgetting", "average", "backward transfer"}};
  for (const MethodResult& method : analysis.methods) {
    for (std::size_t r = 0; r < method.rates.size(); ++r) {
      const RateResult& rate = method.rates[r];
      rows.push_back({r == 0 ? method.name : "", setting_name(rate) + (method.best == r ? " *" : "  "),
                      seeds_text(rate), cell(rate.new_loss), cell(rate.old_loss), cell(rate.forgetting, true),
                      cell(rate.average_shown()), cell(rate.transfer_shown(), true)});
    }
  }
  return layout(rows) + "* the method's lowest new loss\n" +
         (!study.counts_held() && study.tasks.size() < 2 ? "forgetting is not measured: held is not given\n" : "");
}

// What every model along the way scores on every set: one row a stage, at each method's rate of lowest new loss.
std::string matrix_table(const Study& study, const Analysis& analysis) {
  std::vector<std::vector<std::string>> rows = {{"model", "after"}};
  for (const Study::Set& task : study.tasks) rows[0].push_back(task.name);
  for (const Study::Set& held : study.held) rows[0].push_back("held " + held.name);
  const auto add = [&](const RateResult& rate, std::size_t stage, const std::string& model) {
    std::vector<std::string> row = {model, stage == 0 ? "" : study.tasks[stage - 1].name};
    for (std::size_t j = 0; j < study.tasks.size(); ++j) {
      row.push_back(value_text(study.tasks[j].metric, rate.metrics[stage][j]));
    }
    for (std::size_t h = 0; h < study.held.size(); ++h) {
      row.push_back(value_text(study.held[h].metric, rate.held_metrics[stage][h]));
    }
    rows.push_back(std::move(row));
  };
  for (const MethodResult& method : analysis.methods) {
    if (!method.best) continue;
    const RateResult& rate = method.rates[*method.best];
    if (rows.size() == 1) add(rate, 0, "base model");
    for (std::size_t stage = 1; stage < rate.metrics.size(); ++stage) {
      add(rate, stage, stage == 1 ? method.name + " " + setting_name(rate) : "");
    }
  }
  if (rows.size() == 1) return "";
  return "\nafter every task, every task (at each method's *; means over seeds)\n" + layout(rows);
}

std::string comparison_table(const Study& study, const Analysis& analysis) {
  const MethodResult& baseline = analysis.methods[study.baseline];
  if (baseline.frontier.empty() || analysis.methods.size() < 2) return "";
  std::vector<std::vector<std::string>> rows = {{"method"}};
  for (const FrontierPoint& point : baseline.frontier) {
    rows[0].push_back(fmt::format("at {:.3f} ({})", point.new_loss, setting_name(point)));
  }
  rows[0].emplace_back("over the common range");
  for (std::size_t m = 0; m < analysis.methods.size(); ++m) {
    if (m == study.baseline) continue;
    const MethodResult& method = analysis.methods[m];
    std::vector<std::string> row = {method.name};
    for (const RatioAt& at : method.at) row.push_back(ratio_text(at));
    const auto& range = method.over_range;
    row.push_back(range ? fmt::format("{} ({} to {})", ratio_number(range->ratio), ratio_number(range->lowest),
                                      ratio_number(range->highest))
                        : "none");
    rows.push_back(std::move(row));
  }
  return fmt::format("\nforgetting at equal new loss, as a share of {}'s (at its losses and learning rates)\n{}",
                     baseline.name, layout(rows));
}

}  // namespace

void write_row(const std::filesystem::path& file, const Study& study, const ScoreRow& row) {
  io::write_file_atomic(file, to_json(study, row).dump(2) + "\n");
}

ScoreRow read_row(const std::filesystem::path& file, const Study& study) {
  const io::Json json = io::Json::read(file);
  ScoreRow row;
  for (const Study::Set& task : study.tasks) row.tasks.push_back(read_score(json.object("tasks").object(task.name)));
  for (const Study::Set& held : study.held) row.held.push_back(read_score(json.object("held").object(held.name)));
  return row;
}

std::string results_json(const Study& study, const Analysis& analysis) {
  ordered_json methods = ordered_json::array(), sequences = ordered_json::array();
  for (std::size_t m = 0; m < analysis.methods.size(); ++m) {
    methods.push_back(to_json(study, analysis.methods[m], m == study.baseline));
  }
  for (const Sequence& sequence : study.sequences) sequences.push_back(to_json(study, sequence));
  ordered_json terms = ordered_json::object();
  for (const Definition& definition : definitions(study)) terms[definition.term] = definition.meaning;
  const ordered_json json = {{"tasks", to_json(study.tasks)},
                             {"held", to_json(study.held)},
                             {"baseline", study.methods[study.baseline]},
                             {"sequences_complete", analysis.complete},
                             {"sequences_diverged", analysis.diverged},
                             {"sequences_planned", study.sequences.size()},
                             {"definitions", terms},
                             {"base", to_json(study, study.base)},
                             {"methods", methods},
                             {"sequences", sequences}};
  return json.dump(2) + "\n";
}

std::string results_table(const Study& study, const Analysis& analysis) {
  return rates_table(study, analysis) + matrix_table(study, analysis) + comparison_table(study, analysis);
}

std::vector<Definition> definitions(const Study& study) {
  const bool held = study.counts_held();
  const char* measure = metrics_alike(study) ? "metric" : "loss (their metrics are partly losses, partly accuracies)";
  return {
      {"new loss", "Loss on a task's evaluation data right after the task was learned, averaged over the tasks."},
      {"old loss", held ? "Loss on the held data after the last task, averaged over the held sets that count."
                        : "Loss on all tasks but the last after the last task, averaged over them."},
      {"forgetting",
       held ? "Old loss minus the base model's." : "Old loss minus the loss right after each task was learned."},
      {"average", fmt::format("Mean over the tasks of their {} after the last task.", measure)},
      {"backward transfer",
       fmt::format("Mean over all tasks but the last of their {} after the last task minus that right after learning "
                   "them. Losses count negated, so that higher is better and negative means forgetting.",
                   measure)},
      {"choice accuracy",
       "Share of questions whose correct choice has the highest mean log-likelihood per token of all its choices."},
      {"exact match", "Share of prompts to which the model's likeliest answer, token by token, is the right one."},
      {"forgetting at equal new loss",
       "A method's forgetting by linear interpolation along its frontier (the learning rates that no other one beats "
       "in both new loss and forgetting), divided by the baseline's at the same new loss. Not reached: the method's "
       "lowest new loss is higher. At most: even its highest new loss is lower."},
      {"over the common range", "The same for the areas under both frontiers over the new losses that both reach."},
      {"spread", "± is the sample standard deviation over seeds."},
  };
}

std::string ratio_number(double ratio) { return fmt::format("{:.{}f}", ratio, std::abs(ratio) < 0.1 ? 3 : 2); }

std::string ratio_text(const RatioAt& at) {
  if (!at.reached) return "not reached";
  if (!at.ratio) return "nothing to compare";  // the baseline forgets nothing there
  return (at.upper_bound ? "≤ " : "") + ratio_number(*at.ratio);
}

std::string value_text(Metric metric, double value) {
  return higher_is_better(metric) ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.3f}", value);
}

std::string spread_text(const Spread& spread, int digits, bool sign) {
  std::string text = sign ? fmt::format("{:+.{}f}", spread.mean, digits) : fmt::format("{:.{}f}", spread.mean, digits);
  if (spread.values.size() > 1) text += fmt::format(" ± {:.{}f}", spread.deviation, digits);
  return text;
}

}  // namespace inlay::study
