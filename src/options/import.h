#pragma once

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

// A file of axolotl. Where its defaults are others than ours, they are written out.
Imported import_axolotl(const std::string& yaml, const std::string& source);

// The arguments of mini_trainer's command line.
Imported import_mini_trainer(const std::vector<std::string>& arguments);

}  // namespace inlay::options
