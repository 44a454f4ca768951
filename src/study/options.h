#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "options/train_options.h"
#include "study/metrics.h"

// What `inlay continual` is asked to do. A method is nothing but a set of training keys, so every key of `inlay train`
// works here, with the same checks and messages.
namespace inlay::study {

struct ContinualTask {
  std::string name;
  std::vector<std::string> train, eval;  // JSONL files
  Metric metric = Metric::loss;
  options::TrainOptions evaluation;  // how its evaluation is read: as far and by the template that training reads it
};

struct HeldSet {
  std::string name;
  std::vector<std::string> data;
  Metric metric = Metric::loss;  // what is shown; forgetting is always of losses
};

struct ContinualMethod {
  std::string name;
  std::vector<double> learning_rates;
  std::vector<options::TrainOptions> training;  // one a task: everything but model, folder, learning rate and seed
};

// Whose weights stay on disk once they are evaluated: of each sequence's last task, all, or none.
enum class KeepModels : std::uint8_t { last, all, none };

struct ContinualOptions {
  std::string base_model, output_dir;
  std::vector<ContinualTask> tasks;
  std::vector<HeldSet> held;
  std::vector<ContinualMethod> methods;
  std::vector<std::int64_t> seeds = {42};
  std::string baseline;  // the method that the others are held against
  KeepModels keep_models = KeepModels::last;
  options::TrainOptions evaluation;  // device, dtype and batch of all evaluations
  std::string text;                  // the file as it was read
};

// source names the file in messages.
ContinualOptions load_continual_options(const std::filesystem::path& file);
ContinualOptions parse_continual_options(const std::string& yaml, const std::string& source);

// A learning rate as it is written in folders and tables: 3e-5, 2.5e-4.
std::string rate_name(double rate);

}  // namespace inlay::study
