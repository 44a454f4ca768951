#pragma once

#include "core/console.h"
#include "study/options.h"
#include "train/run.h"

namespace inlay::study {

// Every method at every learning rate from every seed through all tasks, one after the other; after each task all of
// them and the held sets are evaluated. Everything is on disk as soon as it is known, and with resume only what is
// missing is done. An interrupt (Ctrl-C) leaves a checkpoint of the run it meets.
train::RunEnd run_continual(const ContinualOptions& options, bool resume, bool quiet);

// Writes results.json and report.html from what is on disk.
void write_report(const ContinualOptions& options, const Study& study, const Analysis& analysis);

}  // namespace inlay::study
