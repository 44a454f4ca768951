#include "study/continual.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/interrupt.h"
#include "core/text.h"
#include "data/choices.h"
#include "io/file.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "study/page.h"
#include "study/record.h"
#include "study/results.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/merge.h"
#include "train/session.h"

namespace inlay::study {

namespace fs = std::filesystem;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// What a model is evaluated on: documents, or questions with choices.
struct EvaluationSet {
  std::string name;
  std::vector<Document> documents;
  std::vector<data::Question> questions;
};

// Read as the options read what is learned.
EvaluationSet read_set(const std::string& name, const std::vector<std::string>& files,
                       const options::TrainOptions& options, std::int64_t vocab, Console& console) {
  const std::int64_t sequence_len = options.sequence_len;
  EvaluationSet set{.name = name};
  for (const std::string& file : files) {
    const bool choices = data::holds_choices(file);
    if (choices ? !set.documents.empty() : !set.questions.empty()) {
      user_error("{}: {} choices, unlike the files of {} before it", file, choices ? "has" : "has no", name);
    }
    if (choices) {
      std::vector<data::Question> more = data::read_choices(file, vocab);
      std::move(more.begin(), more.end(), std::back_inserter(set.questions));
    } else {
      std::vector<Document> more = train::read_documents(file, options, vocab, console);
      std::move(more.begin(), more.end(), std::back_inserter(set.documents));
    }
  }
  // Evaluation reads no further than training does. Questions stay whole: a cut one is another question.
  std::int64_t clipped = 0;
  for (Document& document : set.documents) {
    clipped += truncate(document, static_cast<std::size_t>(sequence_len)) ? 1 : 0;
  }
  if (clipped > 0) {
    console.line(
        fmt::format("{}: {} documents of the evaluation were cut to sequence_len", name, format_count(clipped)));
  }
  return set;
}

// Whether the set can be scored by the metric that is wanted of it.
void check_metric(const EvaluationSet& set, Metric metric, const std::string& file, const std::string& whose) {
  const bool choices = !set.questions.empty();
  if (choices && metric == Metric::token_accuracy) {
    user_error("{}: has choices, but the metric of {} is {}; metric: choice_accuracy scores them", file, whose,
               name_of(metric));
  }
  if (!choices && metric == Metric::choice_accuracy) {
    user_error(
        "{}: has no choices, which the metric of {} (choice_accuracy) needs: {{\"input_ids\": [...], \"choices\": "
        "[[...], [...]], \"answer\": 0}} per line",
        file, whose);
  }
}

EvaluationSet read_task_set(const ContinualTask& task, std::int64_t vocab, Console& console) {
  EvaluationSet set = read_set(task.name, task.eval, task.evaluation, vocab, console);
  check_metric(set, task.metric, task.eval[0], "task " + task.name);
  if (!set.questions.empty() && task.metric == Metric::loss) {
    user_error("{}: has choices, but the metric of task {} is loss; metric: choice_accuracy scores them", task.eval[0],
               task.name);
  }
  return set;
}

// Questions may be held without a metric: then their loss is shown.
EvaluationSet read_held_set(const HeldSet& held, const options::TrainOptions& options, std::int64_t vocab,
                            Console& console) {
  EvaluationSet set = read_set(held.name, held.data, options, vocab, console);
  check_metric(set, held.metric, held.data[0], "held " + held.name);
  return set;
}

SetScore score(train::Engine& engine, const EvaluationSet& set) {
  SetScore score;
  if (!set.questions.empty()) {
    const train::ChoiceEvaluation result = train::evaluate_choices(engine, set.questions);
    score.loss = result.loss;
    score.choice_accuracy = result.accuracy;
  } else {
    const train::Evaluation result = train::evaluate(engine, set.documents);
    score.loss = result.loss;
    score.token_accuracy = result.accuracy;
  }
  return score;
}

// Says once what a task's training data is; the runs themselves pass by quietly.
void describe_training_data(const ContinualTask& task, const options::TrainOptions& options, std::int64_t vocab,
                            Console& console) {
  const data::BatchSampler sampler(train::read_datasets(options.datasets, options, vocab, console),
                                   train::batch_options(options));
  std::string text = fmt::format("task {}: {} documents, {} tokens", task.name, format_count(sampler.document_count()),
                                 format_count(sampler.tokens_per_epoch()));
  if (sampler.truncated_documents() > 0) {
    text += fmt::format(", {} of them cut to sequence_len ({} tokens fewer)",
                        format_count(sampler.truncated_documents()), format_count(sampler.truncated_tokens()));
  }
  if (sampler.dropped_documents() > 0) {
    text += fmt::format(", {} more were too long and dropped", format_count(sampler.dropped_documents()));
  }
  console.line(text);
}

class ContinualRun {
 public:
  ContinualRun(const ContinualOptions& options, bool resume, bool quiet)
      : options_(options), console_(quiet), passing_(Console::passing(quiet)) {
    config_ = model::load_config(options_.base_model);
    for (const ContinualTask& task : options_.tasks) {
      task_sets_.push_back(read_task_set(task, config_.vocab, console_));
    }
    for (const HeldSet& held : options_.held) {
      held_sets_.push_back(read_held_set(held, options_.evaluation, config_.vocab, console_));
    }
    for (std::size_t t = 0; t < options_.tasks.size(); ++t) {
      describe_training_data(options_.tasks[t], options_.methods[0].training[t], config_.vocab, console_);
    }
    claim_study(options_, resume);
    study_ = read_study(options_);
    for (const Sequence& sequence : study_.sequences) {
      planned_ += done(sequence) ? 0 : options_.tasks.size() - sequence.rows.size();
    }
  }

  train::RunEnd execute() {
    if (!io::exists(base_row_file(options_))) {
      passing_.status("evaluating the base model");
      const std::optional<ScoreRow> row = evaluate_model(options_.base_model, base_config());
      if (!row) return interrupted();
      if (const std::string bad = not_finite(*row); !bad.empty()) user_error("{}: {}", options_.base_model, bad);
      write_row(base_row_file(options_), study_, *row);
      study_.base = *row;
    }
    console_.line("base model: " + describe(study_.base));
    for (Sequence& sequence : study_.sequences) {
      if (done(sequence)) {
        tidy(sequence);
        continue;
      }
      if (learn(sequence) == train::RunEnd::interrupted) return train::RunEnd::interrupted;
      write_report(options_, study_, analyse(study_));
    }
    write_report(options_, study_, analyse(study_));
    return train::RunEnd::finished;
  }

 private:
  // The base model attends as the tasks will.
  model::ModelConfig base_config() const {
    model::ModelConfig config = config_;
    if (options_.evaluation.attention != model::AttentionText{}) config.attention = options_.evaluation.attention;
    return config;
  }

  bool done(const Sequence& sequence) const { return study_.complete(sequence) || !sequence.diverged.empty(); }

  std::string name(const Sequence& sequence, std::size_t task) const {
    return fmt::format("{}, learning rate {}, seed {}, task {}", options_.methods[sequence.method].name,
                       rate_name(sequence.learning_rate), sequence.seed, options_.tasks[task].name);
  }

  train::RunEnd learn(Sequence& sequence) {
    // Where the weights to go on from are gone (somebody removed a folder), the tasks before are learned again.
    while (!sequence.rows.empty() && !has_weights(task_folder(options_, sequence, sequence.rows.size() - 1))) {
      sequence.rows.pop_back();
      ++planned_;
    }
    while (!done(sequence)) {
      if (interrupt_requested()) return interrupted();
      const std::size_t task = sequence.rows.size();
      const double began = now();
      if (learn_task(sequence, task) == train::RunEnd::interrupted) return interrupted();
      seconds_ += now() - began;
      ++runs_;
      report_task(sequence, task);
      tidy(sequence);
    }
    return train::RunEnd::finished;
  }

  train::RunEnd learn_task(Sequence& sequence, std::size_t task) {
    const fs::path folder = task_folder(options_, sequence, task);
    try {
      if (train_task(sequence, task, folder) == train::RunEnd::interrupted) return train::RunEnd::interrupted;
      const std::optional<ScoreRow> row =
          evaluate_model(model_folder(folder), model::load_config(model_folder(folder)));
      if (!row) return train::RunEnd::interrupted;
      if (const std::string bad = not_finite(*row); !bad.empty()) throw train::Diverged(bad);
      write_row(folder / row_file, study_, *row);
      sequence.rows.push_back(*row);
    } catch (const train::Diverged& error) {
      sequence.diverged = fmt::format("task {}: {}", options_.tasks[task].name, error.what());
      const nlohmann::json json = {{"message", sequence.diverged}};
      io::write_file_atomic(folder / diverged_file, json.dump(2) + "\n");
    } catch (const UserError& error) {
      user_error("{}: {}", name(sequence, task), error.what());
    }
    return train::RunEnd::finished;
  }

  // Says which loss is not a finite number; empty where all are.
  std::string not_finite(const ScoreRow& row) const {
    for (const auto& [sets, scores] : {std::pair(&task_sets_, &row.tasks), std::pair(&held_sets_, &row.held)}) {
      for (std::size_t i = 0; i < sets->size(); ++i) {
        if (std::isfinite((*scores)[i].loss)) continue;
        return fmt::format("the loss on {} is {}", (*sets)[i].name, format_value((*scores)[i].loss));
      }
    }
    return {};
  }

  // Up to the model in model_folder(folder), or as much of it as is missing.
  train::RunEnd train_task(const Sequence& sequence, std::size_t task, const fs::path& folder) {
    const bool trained = io::exists(folder / "summary.json") && (has_weights(folder) || has_adapter(folder));
    const std::string base =
        task == 0 ? options_.base_model : model_folder(task_folder(options_, sequence, task - 1)).string();
    if (!trained && run_task(sequence, task, base, folder) == train::RunEnd::interrupted) {
      return train::RunEnd::interrupted;
    }
    return has_weights(folder) ? train::RunEnd::finished : merge_task(sequence, task, base, folder);
  }

  // The next task begins with what the adapter has learned in the weights, and all methods' models are read alike.
  train::RunEnd merge_task(const Sequence& sequence, std::size_t task, const std::string& base,
                           const fs::path& folder) {
    passing_.status(name(sequence, task) + ": merging the adapter");
    try {
      train::merge({.base = base, .adapter = folder, .output = model_folder(folder), .dtype = {}}, passing_);
    } catch (const Interrupted&) {
      return train::RunEnd::interrupted;
    }
    return train::RunEnd::finished;
  }

  train::RunEnd run_task(const Sequence& sequence, std::size_t task, const std::string& base, const fs::path& folder) {
    options::TrainOptions options = options_.methods[sequence.method].training[task];
    options.base_model = base;
    options.output_dir = folder.string();
    options.learning_rate = sequence.learning_rate;
    options.seed = sequence.seed;
    const bool resume = train::latest_checkpoint(folder).has_value();
    if (!resume) {
      std::error_code ignored;  // what cannot be removed is met again when the run claims its folder
      fs::remove_all(folder, ignored);
    }
    passing_.status(name(sequence, task));
    return train::run_training(options, resume, passing_);
  }

  // Nothing where an interrupt came.
  std::optional<ScoreRow> evaluate_model(const fs::path& folder, const model::ModelConfig& config) {
    const options::TrainOptions& evaluation = options_.evaluation;
    train::BatchBounds bounds{.tokens = evaluation.micro_batch_size * evaluation.sequence_len};
    bool choices = false;
    for (const auto* sets : {&task_sets_, &held_sets_}) {
      for (const EvaluationSet& set : *sets) {
        choices |= !set.questions.empty();
        for (const Document& d : set.documents) widen(bounds, d);
        for (const Document& d : data::choice_documents(set.questions)) widen(bounds, d);
      }
    }
    ScoreRow row;
    try {
      const auto engine =
          train::load_engine(folder, config,
                             train::engine_options(choices ? train::Purpose::choices : train::Purpose::evaluation,
                                                   train::resolve_machine(evaluation.device, evaluation.dtype), bounds),
                             passing_);
      for (const auto& [sets, scores] : {std::pair(&task_sets_, &row.tasks), std::pair(&held_sets_, &row.held)}) {
        for (const EvaluationSet& set : *sets) {
          passing_.status("evaluating on " + set.name);
          scores->push_back(score(*engine, set));
        }
      }
    } catch (const Interrupted&) {
      return std::nullopt;
    }
    return row;
  }

  static void widen(train::BatchBounds& bounds, const Document& document) {
    const auto length = static_cast<std::int64_t>(document.input_ids.size());
    bounds.document = std::max(bounds.document, length);
    bounds.tokens = std::max(bounds.tokens, length);
  }

  // Frees the disk of what nothing will be trained from any more.
  void tidy(const Sequence& sequence) const {
    if (options_.keep_models == KeepModels::all) return;
    const std::size_t learned = sequence.rows.size();
    for (std::size_t t = 0; t < learned; ++t) {
      const fs::path folder = task_folder(options_, sequence, t);
      const bool last = t + 1 == learned;
      const bool over = done(sequence) && options_.keep_models == KeepModels::none;
      !last || over ? drop_weights(folder) : drop_checkpoints(folder);
    }
    if (!sequence.diverged.empty()) drop_weights(task_folder(options_, sequence, learned));
  }

  std::string describe(const ScoreRow& row) const {
    std::string text;
    const auto add = [&](const std::string& set, double value) {
      text += fmt::format("{}{} {:.3f}", text.empty() ? "" : ", ", set, value);
    };
    for (std::size_t j = 0; j < row.tasks.size(); ++j) {
      add(options_.tasks[j].name, row.tasks[j].value(options_.tasks[j].metric));
    }
    for (std::size_t h = 0; h < row.held.size(); ++h) {
      const Metric metric = options_.held[h].metric;
      add("held " + options_.held[h].name, row.held[h].value(metric));
      const double change = row.held[h].value(metric) - study_.base.held[h].value(metric);
      if (change != 0) text += fmt::format(" ({:+.3f})", change);
    }
    return text;
  }

  void report_task(const Sequence& sequence, std::size_t task) {
    const bool good = sequence.diverged.empty();
    if (!good) planned_ -= options_.tasks.size() - task - 1;  // the tasks after it will not be learned
    const double left = seconds_ / static_cast<double>(runs_) * static_cast<double>(planned_ - runs_);
    console_.line(fmt::format("[{}/{}] {}: {}{}", runs_, planned_, name(sequence, task),
                              good ? describe(sequence.rows.back()) : "diverged, " + sequence.diverged,
                              runs_ < planned_ ? fmt::format("; {} left", format_duration(left)) : ""));
  }

  train::RunEnd interrupted() {
    console_.line(
        fmt::format("interrupted; everything so far is saved in {}. To continue, run the same command with --resume",
                    options_.output_dir));
    return train::RunEnd::interrupted;
  }

  ContinualOptions options_;
  Console console_, passing_;
  model::ModelConfig config_;
  std::vector<EvaluationSet> task_sets_, held_sets_;
  Study study_;
  std::size_t planned_ = 0, runs_ = 0;  // runs of this call
  double seconds_ = 0;
};

}  // namespace

train::RunEnd run_continual(const ContinualOptions& options, bool resume, bool quiet) {
  return ContinualRun(options, resume, quiet).execute();
}

void write_report(const ContinualOptions& options, const Study& study, const Analysis& analysis) {
  const fs::path output = options.output_dir;
  io::write_file_atomic(output / "results.json", results_json(study, analysis));
  io::write_file_atomic(output / "report.html",
                        report_html(study, analysis, {.base_model = options.base_model, .config = options.text}));
}

}  // namespace inlay::study
