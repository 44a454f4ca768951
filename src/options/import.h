#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// Configurations of other programs, translated as a whole.
namespace inlay::options {

struct Imported {
  std::string yaml;  // a configuration of inlay train
  // For people: what was translated, what is left out because it is not needed, what could not be carried over, and
  // what is still to be filled in or decided.
  std::vector<std::string> translated, unneeded, lost, open;

  std::string remarks() const;  // all of them, a line each
};

// A file of axolotl. Where its defaults are others than ours, they are written out. to: the folder that the result is
// put into, from which its relative paths are to count; absent: nobody knows.
Imported import_axolotl(const std::string& yaml, const std::string& source,
                        const std::optional<std::filesystem::path>& to = {});

// mini_trainer's command line, with or without what starts it.
Imported import_mini_trainer(const std::vector<std::string>& arguments,
                             const std::optional<std::filesystem::path>& to = {});

}  // namespace inlay::options
