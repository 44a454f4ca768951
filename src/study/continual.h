#pragma once

#include <functional>

#include "core/console.h"
#include "study/options.h"
#include "train/run.h"

namespace inlay::study {

// Does some of a study's sequences at the same time as others; whether it was interrupted.
using Helpers = std::function<train::RunEnd()>;

struct ContinualWork {
  bool resume = false, quiet = false;
  bool helping = false;  // another process has begun the study, and will report
  Helpers helpers = {};  // do all sequences in place of this process; none: it does them itself
};

// Every method at every learning rate from every seed through all tasks, one after the other; after each task all of
// them and the held sets are evaluated. Everything is on disk as soon as it is known, and with resume only what is
// missing is done. A sequence that another process is at is left to it. An interrupt (Ctrl-C) leaves a checkpoint of
// the run it meets.
train::RunEnd run_continual(const ContinualOptions& options, const ContinualWork& work);

// Writes results.json and report.html from what is on disk.
void write_report(const ContinualOptions& options, const Study& study, const Analysis& analysis);

}  // namespace inlay::study
