#include "study/continual.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "core/interrupt.h"
#include "core/text.h"
#include "io/file.h"
#include "io/lock.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "study/evaluation_sets.h"
#include "study/page.h"
#include "study/record.h"
#include "study/results.h"
#include "train/checkpoint.h"
#include "train/merge.h"
#include "train/objective.h"
#include "train/session.h"
#include "train/take_back.h"

namespace inlay::study {

namespace fs = std::filesystem;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Says once what a task's training data is; the runs themselves pass by quietly.
void describe_training_data(const ContinualTask& task, const options::TrainOptions& options, std::int64_t vocab,
                            Console& console) {
  const data::BatchSampler sampler(train::read_datasets(options.datasets, options, vocab, console),
                                   train::batch_options(options));
  std::string text = fmt::format("task {}: {}, {}", task.name, counted(sampler.document_count(), "document"),
                                 counted(sampler.tokens_per_epoch(), "token"));
  if (sampler.truncated_documents() > 0) {
    text += fmt::format(", {} of them cut to sequence_len ({} tokens fewer)",
                        format_count(sampler.truncated_documents()), format_count(sampler.truncated_tokens()));
  }
  if (sampler.dropped_documents() > 0) {
    text += fmt::format(", {} more were too long and dropped", format_count(sampler.dropped_documents()));
  }
  console.line(text);
}

// What of a method's keys decides whether a task's rows are such as it learns from.
std::string wanted_rows(const options::TrainOptions& options) {
  const bool predictions = options.distillation.enabled && options.distillation.teacher.empty();
  return fmt::format("{} {} {} {}", options::value_text(options, "rl"), predictions, options.sdft.enabled,
                     options.sdft.shown);
}

// Reads what methods read otherwise than those before them, such as pairs: a mistake shall not come out when the others
// have trained for hours.
void check_methods(const ContinualOptions& study, const model::ModelConfig& config, Console& console) {
  std::set<std::string> known;
  for (const ContinualMethod& method : study.methods) {
    for (std::size_t t = 0; t < method.training.size(); ++t) {
      const options::TrainOptions& options = method.training[t];
      try {
        train::check_teacher(options, config);
        if (!known.insert(fmt::format("{} {}", t, wanted_rows(options))).second) continue;
        train::read_run_data(options, config.vocab, console, options.sdft.enabled);
      } catch (const UserError& error) {
        user_error("method {}, task {}: {}", method.name, study.tasks[t].name, error.what());
      }
    }
  }
}

class ContinualRun {
 public:
  ContinualRun(const ContinualOptions& options, const ContinualWork& work)
      : options_(options),
        work_(work),
        console_(work.quiet),
        passing_(Console::passing(work.quiet || work.helping)),  // others write to the same terminal
        config_(model::load_config(options.base_model)),
        sets_(options_, base_config(), work.helping ? passing_ : console_) {
    if (!work_.helping) {
      for (const std::string& note : options_.notes) console_.line(note);
      for (std::size_t t = 0; t < options_.tasks.size(); ++t) {
        const auto trains = std::ranges::find_if(options_.methods, [](const auto& method) { return !method.after; });
        describe_training_data(options_.tasks[t], trains->training[t], config_.vocab, console_);
      }
      check_methods(options_, config_, passing_);
      claim_study(options_, work_.resume);
    }
    study_ = read_study(options_);
    planned_ = missing(study_);
  }

  train::RunEnd execute() {
    began_ = now();
    if (!options_.name.empty() && !work_.helping) console_.line("study " + options_.name);
    try {
      prepare();
    } catch (const Interrupted&) {
      return interrupted();
    }
    if (work_.helpers && planned_ > 0) {
      if (work_.helpers(options_.name) == train::RunEnd::interrupted) return interrupted();
    } else if (work() == train::RunEnd::interrupted) {
      return interrupted();
    }
    report();
    return train::RunEnd::finished;
  }

 private:
  // What all sequences are compared with: the base model's own answers, and its scores.
  void prepare() {
    for (std::size_t h = 0; h < options_.held.size(); ++h) {
      if (!sets_.wants_answers(h)) continue;
      const fs::path file = own_answers_file(options_, options_.held[h]);
      if (!io::exists(file)) {
        passing_.status("the base model answers the prompts of " + options_.held[h].name);
        sets_.write_own_answers(h, file, passing_);
      }
      sets_.read_own_answers(h, file, work_.helping ? passing_ : console_);
    }
    if (!io::exists(base_row_file(options_))) {
      passing_.status("evaluating the base model");
      const ScoreRow row = sets_.evaluate(options_.base_model, base_config(), passing_);
      if (const std::string bad = not_finite(row); !bad.empty()) user_error("{}: {}", options_.base_model, bad);
      write_row(base_row_file(options_), study_, row);
      study_.base = row;
    }
    if (!work_.helping) console_.line("base model: " + describe(study_.base));
  }

  train::RunEnd work() {
    for (Sequence& sequence : study_.sequences) {
      if (options_.methods[sequence.method].after) continue;  // its turn is with the method that trains
      const std::vector<Sequence*> followers = followers_of(sequence);
      if (next_stage(sequence, followers)) {
        const fs::path folder = sequence_folder(options_, sequence);
        io::create_folders(folder);
        const auto lock = io::FolderLock::if_free(folder);
        if (lock == nullptr) continue;
        for (Sequence* one : followers) read_rows(study_, options_, *one);  // others may have been here meanwhile
        read_rows(study_, options_, sequence);
        if (learn(sequence, followers) == train::RunEnd::interrupted) return train::RunEnd::interrupted;
        if (!work_.helping) report();
      }
      tidy(sequence, followers);
    }
    return train::RunEnd::finished;
  }

  void report() const {
    const Study study = read_study(options_);
    if (!work_.helping) write_report(options_, study, analyse(study));
  }

  // The base model attends as the tasks will.
  model::ModelConfig base_config() const {
    model::ModelConfig config = config_;
    if (options_.evaluation.attention != model::AttentionText{}) config.attention = options_.evaluation.attention;
    return config;
  }

  bool done(const Sequence& sequence) const { return study_.complete(sequence) || !sequence.diverged.empty(); }

  // Rows that are yet to come.
  std::size_t missing(const Study& study) const {
    std::size_t rows = 0;
    for (const Sequence& sequence : study.sequences) {
      rows += done(sequence) ? 0 : options_.tasks.size() - sequence.rows.size();
    }
    return rows;
  }

  // The sequences that are made of this one's models.
  std::vector<Sequence*> followers_of(const Sequence& sequence) {
    std::vector<Sequence*> followers;
    for (Sequence& other : study_.sequences) {
      const auto& after = options_.methods[other.method].after;
      if (after && after->method == sequence.method && other.learning_rate == sequence.learning_rate &&
          other.seed == sequence.seed) {
        followers.push_back(&other);
      }
    }
    return followers;
  }

  // The first task after which somebody has no row yet, and can have one.
  std::optional<std::size_t> next_stage(const Sequence& sequence, const std::vector<Sequence*>& followers) const {
    std::optional<std::size_t> stage;
    if (!done(sequence)) stage = sequence.rows.size();
    for (const Sequence* follower : followers) {
      const std::size_t rows = follower->rows.size();
      const bool possible = sequence.diverged.empty() || rows < sequence.rows.size();
      if (!done(*follower) && possible && (!stage || rows < *stage)) stage = rows;
    }
    return stage;
  }

  std::string name(const Sequence& sequence, std::size_t task) const {
    std::string text =
        fmt::format("{}, learning rate {}", options_.methods[sequence.method].name, rate_name(sequence.learning_rate));
    if (sequence.share) text += fmt::format(", share {}", *sequence.share);
    return text + fmt::format(", seed {}, task {}", sequence.seed, options_.tasks[task].name);
  }

  train::RunEnd learn(Sequence& sequence, const std::vector<Sequence*>& followers) {
    while (const auto stage = next_stage(sequence, followers)) {
      if (interrupt_requested()) return train::RunEnd::interrupted;
      // What comes next begins with a model: where its weights are gone (somebody removed a folder, or a method that
      // needs them was added), the tasks that led to it are learned again.
      const bool trained = *stage < sequence.rows.size();
      const std::size_t needed = trained ? *stage + 1 : *stage;  // tasks that it has learned
      if (needed > 0 && !has_weights(task_folder(options_, sequence, needed - 1))) {
        planned_ += sequence.rows.size() - (needed - 1);
        drop_rows(options_, sequence, needed - 1);
        continue;
      }
      if (!trained) {
        if (attempt(sequence, *stage, [&](const fs::path& folder) { return train_task(sequence, *stage, folder); }) ==
            train::RunEnd::interrupted) {
          return train::RunEnd::interrupted;
        }
      } else {
        for (Sequence* follower : followers) {
          if (done(*follower) || follower->rows.size() != *stage) continue;
          if (attempt(*follower, *stage, [&](const fs::path& folder) {
                return take_back(*follower, sequence, *stage, folder);
              }) == train::RunEnd::interrupted) {
            return train::RunEnd::interrupted;
          }
        }
      }
      tidy(sequence, followers);
    }
    return train::RunEnd::finished;
  }

  // One task of a sequence: the model, which make(folder) makes, and its scores; or how it failed.
  train::RunEnd attempt(Sequence& sequence, std::size_t task,
                        const std::function<train::RunEnd(const fs::path& folder)>& make) {
    const fs::path folder = task_folder(options_, sequence, task);
    try {
      if (make(folder) == train::RunEnd::interrupted) return train::RunEnd::interrupted;
      const ScoreRow row = sets_.evaluate(model_folder(folder), model::load_config(model_folder(folder)), passing_);
      if (const std::string bad = not_finite(row); !bad.empty()) throw train::Diverged(bad);
      write_row(folder / row_file, study_, row);
      sequence.rows.push_back(row);
    } catch (const train::Diverged& error) {
      sequence.diverged = fmt::format("task {}: {}", options_.tasks[task].name, error.what());
      const nlohmann::json json = {{"message", sequence.diverged}};
      io::write_file_atomic(folder / diverged_file, json.dump(2) + "\n");
    } catch (const Interrupted&) {
      return train::RunEnd::interrupted;
    } catch (const UserError& error) {
      user_error("{}: {}", name(sequence, task), error.what());
    }
    report_task(sequence, task);
    return train::RunEnd::finished;
  }

  // Says which loss is not a finite number; empty where all are.
  std::string not_finite(const ScoreRow& row) const {
    for (const auto& [sets, scores] : {std::pair(&sets_.tasks(), &row.tasks), std::pair(&sets_.held(), &row.held)}) {
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
    if (has_weights(folder)) return train::RunEnd::finished;
    // The next task begins with what the adapter has learned in the weights, and all methods' models are read alike.
    passing_.status(name(sequence, task) + ": merging the adapter");
    train::merge({.base = base, .adapter = folder, .output = model_folder(folder), .dtype = {}}, passing_);
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

  // The model after a task with some of what it has learned taken back: against the base model, as those who proposed
  // it do, however many tasks there were.
  train::RunEnd take_back(const Sequence& follower, const Sequence& sequence, std::size_t task,
                          const fs::path& folder) {
    passing_.status(name(follower, task));
    io::remove_all(folder);
    io::create_folders(folder.parent_path());
    const train::TakeBackOptions options{.base = options_.base_model,
                                         .trained = model_folder(task_folder(options_, sequence, task)),
                                         .output = folder,
                                         .how = options_.methods[follower.method].after->how,
                                         .share = *follower.share};
    train::take_back(options, passing_);
    const nlohmann::ordered_json json = {
        {"made_of", options.trained.string()},
        {"by", options.how == train::TakeBack::average ? "average" : "keep"},
        {"share", options.share},
    };
    io::write_file_atomic(folder / "summary.json", json.dump(2) + "\n");
    return train::RunEnd::finished;
  }

  // Frees the disk of what nothing will be made of any more.
  void tidy(const Sequence& sequence, const std::vector<Sequence*>& followers) const {
    if (options_.keep_models == KeepModels::all) return;
    const auto wanted = next_stage(sequence, followers);  // all before it have been used by everybody
    tidy_one(sequence, wanted.value_or(options_.tasks.size()));
    for (const Sequence* follower : followers) tidy_one(*follower, options_.tasks.size());
  }

  void tidy_one(const Sequence& sequence, std::size_t wanted) const {
    const std::size_t learned = sequence.rows.size();
    for (std::size_t t = 0; t < std::min(learned, wanted); ++t) {
      const fs::path folder = task_folder(options_, sequence, t);
      const bool last = t + 1 == learned;
      const bool over = done(sequence) && options_.keep_models == KeepModels::none;
      !last || over ? drop_weights(folder) : drop_checkpoints(folder);
    }
    if (!sequence.diverged.empty() && learned < options_.tasks.size()) {
      drop_weights(task_folder(options_, sequence, learned));
    }
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

  // Counted on disk, where other processes' rows are as well.
  void report_task(const Sequence& sequence, std::size_t task) const {
    const bool good = sequence.diverged.empty();
    const std::size_t left = std::min(missing(read_study(options_)), planned_), made = planned_ - left;
    const double seconds =
        (now() - began_) / static_cast<double>(std::max<std::size_t>(made, 1)) * static_cast<double>(left);
    console_.line(fmt::format("[{}/{}] {}: {}{}", made, planned_, name(sequence, task),
                              good ? describe(sequence.rows.back()) : "diverged, " + sequence.diverged,
                              left > 0 ? fmt::format("; {} left", format_duration(seconds)) : ""));
  }

  train::RunEnd interrupted() const {
    if (!work_.helping) {
      console_.line(
          fmt::format("interrupted; everything so far is saved in {}. To continue, run the same command with --resume",
                      options_.output_dir));
    }
    return train::RunEnd::interrupted;
  }

  const ContinualOptions options_;
  const ContinualWork work_;
  mutable Console console_, passing_;
  model::ModelConfig config_;
  EvaluationSets sets_;
  Study study_;
  std::size_t planned_ = 0;  // rows that were missing when this call began
  double began_ = 0;
};

}  // namespace

train::RunEnd run_continual(std::span<const ContinualOptions> studies, const ContinualWork& work) {
  // Where one was interrupted, those after it may not have begun.
  const bool any_begun = std::ranges::any_of(studies, has_study);
  std::vector<std::unique_ptr<ContinualRun>> runs;
  for (const ContinualOptions& study : studies) {
    ContinualWork one = work;
    one.resume = work.resume && (has_study(study) || !any_begun);
    runs.push_back(std::make_unique<ContinualRun>(study, one));
  }
  for (const auto& run : runs) {
    if (run->execute() == train::RunEnd::interrupted) return train::RunEnd::interrupted;
  }
  return train::RunEnd::finished;
}

void write_report(const ContinualOptions& options, const Study& study, const Analysis& analysis) {
  const fs::path output = options.output_dir;
  io::write_file_atomic(output / "results.json", results_json(study, analysis));
  io::write_file_atomic(output / "report.html",
                        report_html(study, analysis, {.base_model = options.base_model, .config = options.text}));
}

}  // namespace inlay::study
