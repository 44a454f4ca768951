#include <inlay/train.h>

#include <atomic>

#include "core/interrupt.h"
#include "io/file.h"
#include "train/run.h"
#include "train/run_plan.h"

namespace inlay {

namespace {

options::TrainOptions options_of(const Configuration& configuration, options::Needed needed) {
  return options::parse_run_options(configuration.yaml, configuration.name, configuration.overrides, needed);
}

// Interrupts are the process's own, so there is one run at a time.
std::atomic_flag under_way;
struct Turn {
  Turn() {
    if (under_way.test_and_set())
      user_error("train: another run is under way in this process, and there can be only one");
  }
  ~Turn() { under_way.clear(); }
};

}  // namespace

Configuration Configuration::read(const std::string& path) {
  return {.yaml = io::read_file(path, std::size_t{16} << 20), .name = path};
}

std::string plan_training(const Configuration& configuration) {
  const SignalShield shield;
  Console console(true);
  return to_json(train::plan_run(options_of(configuration, options::Needed::all_but_data), {}, console)).dump();
}

TrainingEnd train_model(const Configuration& configuration, const TrainingOptions& options) {
  const Turn turn;
  const SignalShield shield;
  forget_interrupt();
  Console console(options.quiet);
  const auto observe = [&](const std::string& line) {
    if (options.on_metrics && !options.on_metrics(line)) request_interrupt();
  };
  const train::RunEnd end = train::run_training(options_of(configuration, options::Needed::all), options.resume,
                                                console, parallel::single_process(), observe);
  forget_interrupt();
  return end == train::RunEnd::finished ? TrainingEnd::finished : TrainingEnd::stopped;
}

TrainingEnd train_model(const Configuration& configuration) { return train_model(configuration, {}); }

void stop_training() { request_interrupt(); }

}  // namespace inlay
