#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/console.h"
#include "study/options.h"
#include "train/run.h"

namespace inlay::study {

// Does the sequences of the study of that name, several at the same time; whether it was interrupted.
using Helpers = std::function<train::RunEnd(const std::string& study)>;

struct ContinualWork {
  bool resume = false, quiet = false;
  bool helping = false;  // another process has begun the study, and will report
  Helpers helpers = {};  // do all sequences in place of this process; none: it does them itself
};

// The studies of a file, one after the other; all are checked before the first of them trains. In each, every method at
// every learning rate from every seed through all tasks, one after the other; after each task all of
// them and the held sets are evaluated. Everything is on disk as soon as it is known, and with resume only what is
// missing is done. A sequence that another process is at is left to it. An interrupt (Ctrl-C) leaves a checkpoint of
// the run it meets.
train::RunEnd run_continual(std::span<const ContinualOptions> studies, const ContinualWork& work);

// Writes results.json and report.html from what is on disk.
void write_report(const ContinualOptions& options, const Study& study, const Analysis& analysis);

}  // namespace inlay::study
