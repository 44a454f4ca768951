#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <inlay/types.h>

namespace inlay {

// A configuration as `inlay train` reads it (docs/configuration.md): the text of a YAML file, and the name that errors
// call it by.
struct Configuration {
  std::string yaml;
  std::string name = "configuration";
  std::vector<std::pair<std::string, std::string>> overrides = {};  // keys, and values as YAML

  // The file's text, under its path.
  INLAY_API static Configuration read(const std::string& path);
};

// Where every byte of the run will go and how fast it will be: the JSON of `inlay plan --json`.
INLAY_API std::string plan_training(const Configuration& configuration);

struct TrainingOptions {
  bool resume = false;  // from the latest checkpoint in output_dir
  bool quiet = true;    // nothing on standard error
  // Called with every line of metrics.jsonl, as JSON, from the thread that called it. False ends the run after this
  // step: everything is saved.
  std::function<bool(const std::string& metrics)> on_metrics;
};

enum class TrainingEnd { finished, stopped };

// A whole run, as `inlay train` does it, in this process and on this thread. One at a time.
INLAY_API TrainingEnd train_model(const Configuration& configuration, const TrainingOptions& options);
INLAY_API TrainingEnd train_model(const Configuration& configuration);
// Ends the run that is under way after its current step; may be called from any thread.
INLAY_API void stop_training();

}  // namespace inlay
