#pragma once

#include <cstdint>

#include "model/objective.h"
#include "options/train_options.h"

// Which evaluation of a run was the best, and when to stop because none is better: as transformers has it.
namespace inlay::train {

// What an evaluation found after so many steps.
struct Evaluated {
  std::int64_t step = -1;  // -1: nothing was evaluated yet
  double loss = 0, accuracy = 0;
  model::Objective::Metrics metrics = {};  // of the objective; where there are some, loss is its own

  double value(options::Metric metric) const;
  bool known() const { return step >= 0; }
  bool operator==(const Evaluated&) const = default;
};

struct Best {
  Evaluated at;
  double leak = 0;                // Engine::leak() there, where directions are frozen
  std::int64_t not_improved = 0;  // evaluations in a row that were no better, by early_stopping_threshold
};

// Takes an evaluation into account. True: it is the best so far. What was evaluated before the first step does not
// count: there is no checkpoint of it, and a run that makes nothing better still has a result.
bool note_evaluation(const options::TrainOptions& options, const Evaluated& evaluated, Best& best);

// Whether early_stopping_patience is at its end.
bool stops_early(const options::TrainOptions& options, const Best& best);

}  // namespace inlay::train
