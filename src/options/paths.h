#pragma once

#include <filesystem>
#include <string>

#include "options/train_options.h"

namespace inlay::options {

// Makes the relative paths that one key holds relative to a folder: what is read where it is there, what is written
// always. What is to be read and only there in the working directory stays as it is, with a note.
void locate(TrainOptions& options, const std::string& key, const std::filesystem::path& folder);

}  // namespace inlay::options
