#pragma once

#include "train/optimizer.h"
#include "train/shared_save.h"

// optimizer.safetensors: every bit that training needs to go on as if it had never stopped. The same file whatever
// number of ranks wrote it, each its own rows.
namespace inlay::train {

SavedFiles write_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path);
// Every rank takes its rows.
void read_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path);

}  // namespace inlay::train
