#pragma once

#include <filesystem>
#include <string>

#include "options/train_options.h"

namespace inlay::train {

// What decides which documents stand in which step, as checkpoints keep it.
std::string batching_of(const options::TrainOptions& options);

// UserError where a checkpoint's batching is not the present one: documents would be missed, or met again.
void check_batching(const std::filesystem::path& checkpoint, const std::string& saved, const std::string& now);

}  // namespace inlay::train
