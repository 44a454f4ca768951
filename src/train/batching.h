#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "options/train_options.h"

namespace inlay::train {

// What decides which documents stand in which step, as checkpoints keep it. A step takes as many micro-batches as
// gradient_accumulation_steps says for every process that the run began with.
std::string batching_of(const options::TrainOptions& options, int processes = 1);
std::int64_t step_micro_batches(const std::string& batching);

// UserError where a checkpoint's batching is not the present one: documents would be missed, or met again. Another
// number of processes is welcome: the run's steps stay as large as they were.
void check_batching(const std::filesystem::path& checkpoint, const std::string& saved, const std::string& now);
// What a person should know about that: "12 micro-batches per step, as the run began: 2 for each of 4 processes would
// be 8". Empty where there is nothing to say.
std::string step_size_note(const std::string& saved, const options::TrainOptions& options, int processes);

}  // namespace inlay::train
