#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/answers.h"
#include "options/train_options.h"
#include "study/metrics.h"
#include "train/take_back.h"

// What `inlay continual` is asked to do. A method is nothing but a set of training keys, so every key of `inlay train`
// works here, with the same checks and messages.
namespace inlay::study {

// How a model's own answers are had and judged, where a metric needs them.
struct Answering {
  data::AnswerRule rule;
  std::int64_t max_new_tokens = 256;
  std::int64_t limit = 0;  // of the set's rows only the first so many are answered; 0: all

  bool operator==(const Answering&) const = default;
};

struct ContinualTask {
  std::string name;
  std::vector<std::string> train, eval;  // JSONL files
  Metric metric = Metric::loss;
  Answering answering;
  options::TrainOptions evaluation;  // how its evaluation is read: as far and by the template that training reads it
};

struct HeldSet {
  std::string name;
  std::vector<std::string> data;
  Metric metric = Metric::loss;  // what is shown; forgetting is always of losses
  Answering answering;
  // Where data holds prompts, whatever follows them there: the base model answers them before the first task, at this
  // temperature, and its answers are what is held.
  std::optional<double> own_temperature;
  bool counted = true;  // is part of the old loss; else it is only shown
};

struct ContinualMethod {
  std::string name;
  std::vector<double> learning_rates;
  std::vector<options::TrainOptions> training;  // one a task: everything but model, folder, learning rate and seed
  // A method that trains nothing: it takes another one's models, and back some of what they have learned.
  struct After {
    std::size_t method = 0;
    train::TakeBack how = train::TakeBack::average;
    std::vector<double> shares;  // that stay; each makes models of its own
  };
  std::optional<After> after;
};

// Whose weights stay on disk once they are evaluated: of each sequence's last task, all, or none.
enum class KeepModels : std::uint8_t { last, all, none };

struct ContinualOptions {
  std::string name;  // among the studies of its file; empty: it is the only one
  std::string base_model, output_dir;
  std::vector<ContinualTask> tasks;
  std::vector<HeldSet> held;
  std::vector<ContinualMethod> methods;
  std::vector<std::int64_t> seeds = {42};
  std::string baseline;  // the method that the others are held against
  KeepModels keep_models = KeepModels::last;
  options::TrainOptions evaluation;  // device, dtype and batch of all evaluations
  std::string text;                  // the file as it was read
  std::vector<std::string> notes;    // for people
};

// A file holds one study, or several under `studies`, for which its other keys are the common ones. source names it in
// messages; relative paths are those of a folder, as in a configuration of `inlay train`.
std::vector<ContinualOptions> load_studies(const std::filesystem::path& file);
std::vector<ContinualOptions> parse_studies(const std::string& yaml, const std::string& source,
                                            const std::filesystem::path& folder = {});

// A learning rate as it is written in folders and tables: 3e-5, 2.5e-4.
std::string rate_name(double rate);
// The same with the share behind it, where there is one: "3e-5, 0.25".
template <class Of>
std::string setting_name(const Of& of) {
  return of.share ? fmt::format("{}, {}", rate_name(of.learning_rate), *of.share) : rate_name(of.learning_rate);
}

}  // namespace inlay::study
