#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>

#include "io/checkpoint.h"
#include "train/optimizer.h"
#include "train/shared_save.h"
#include "train/staging.h"

// optimizer.safetensors: what training needs beside the model to go on as if it had never stopped, to the last bit. The
// same file whatever number of ranks wrote it, each its own rows.
namespace inlay::train {

// The dtype that a part is saved in, in the model's own files; nothing where it is unknown.
using SavedDtype = std::function<std::optional<DType>(const weights::Part&)>;
// The states that these files hold, to the bit: the numbers that the model computes with, or, in fp32, the whole of the
// masters.
std::set<std::string> states_in_model(model::ModelParameters& parameters, const SavedDtype& saved);

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
