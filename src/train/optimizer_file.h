#pragma once

#include <set>
#include <span>

#include "io/checkpoint.h"
#include "train/optimizer.h"
#include "train/shared_save.h"
#include "train/staging.h"

// optimizer.safetensors: what training needs beside the model to go on as if it had never stopped, to the last bit. The
// same file whatever number of ranks wrote it, each its own rows.
namespace inlay::train {

// The states that a model's own files hold, to the bit, where they have the dtypes of this one: the numbers that it
// computes with, or, in fp32, the whole of the masters.
std::set<std::string> states_in_model(model::ModelParameters& parameters, const io::Checkpoint& model);

// All states but those left out.
SavedFiles write_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path,
                           const std::set<std::string>& left_out);
// The same from a copy.
SavedFiles write_optimizer(Communicator& ranks, const Staging& staging, const std::filesystem::path& path,
                           const std::set<std::string>& left_out);
// Every rank takes its rows; what was left out comes from the model's files beside it.
void read_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, model::ModelParameters& parameters,
                    const std::filesystem::path& path);

}  // namespace inlay::train
