#pragma once

#include <filesystem>
#include <string>

#include "options/train_options.h"

namespace inlay::options {

enum class PathUse : std::uint8_t { read, written };
// A path of a configuration in that folder: what is read where it is there, what is written always. What is to be read
// and only there in the working directory stays as it is, with a note about the key.
std::string located(const std::string& path, PathUse use, const std::filesystem::path& folder, const std::string& key,
                    std::vector<std::string>& notes);

// ~/x as a shell would have it.
std::string with_home(const std::string& path);

// Whether there is something to read; of a pattern its folder is looked for.
bool is_found(const std::string& path);

// Makes the relative paths that one key holds relative to a folder, as `located` does; an empty one is the working
// directory, where they stay as they are.
void locate(TrainOptions& options, const std::string& key, const std::filesystem::path& folder);

}  // namespace inlay::options
