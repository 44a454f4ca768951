#pragma once

#include <functional>

#include "core/console.h"
#include "core/error.h"
#include "options/train_options.h"
#include "parallel/communicator.h"

namespace inlay::train {

// The loss or the gradient norm is no longer a finite number. A sweep over learning rates goes on without such a run.
class Diverged : public UserError {
 public:
  using UserError::UserError;
};

enum class RunEnd : std::uint8_t { finished, interrupted };

// What goes into metrics.jsonl, as it is written: a line of JSON per step and per evaluation.
using MetricsObserver = std::function<void(const std::string& line)>;

// A whole training run: data, model, steps, evaluations, checkpoints, metrics, and the trained model in output_dir.
// With resume it goes on from the latest checkpoint there, bit for bit. An interrupt (Ctrl-C) ends the current step,
// writes a checkpoint and says how to go on. Every process of the run calls it; the console of the first one speaks.
RunEnd run_training(const options::TrainOptions& options, bool resume, Console& console,
                    const std::shared_ptr<parallel::Communicator>& ranks = parallel::single_process(),
                    const MetricsObserver& observer = {});

}  // namespace inlay::train
