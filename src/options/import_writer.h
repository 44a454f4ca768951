#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "options/import.h"

// What all translations write: our keys, in the order in which they came up.
namespace inlay::options::importing {

// Keys in their order, those with dots as maps.
class Writer {
 public:
  bool has(const std::string& key) const {
    return std::ranges::any_of(keys_, [&](const auto& item) { return item.first == key; });
  }
  void set(const std::string& key, const YAML::Node& value) {
    if (!has(key)) keys_.emplace_back(key, value);
  }
  void drop(const std::string& key) {
    keys_.remove_if([&](const auto& item) { return item.first == key; });
  }
  void replace(const std::string& key, const YAML::Node& value) {
    for (auto& [name, held] : keys_) {
      if (name == key) held.reset(value);
    }
  }
  YAML::Node get(const std::string& key) const {
    for (const auto& [name, value] : keys_) {
      if (name == key) return value;
    }
    return {};
  }

  std::string text() const;

 private:
  // A list, whose entries stay where they are: assigning to a YAML::Node changes what all copies of it stand for.
  std::list<std::pair<std::string, YAML::Node>> keys_;
};

// YAML in one line.
std::string flow(const YAML::Node& value);

// Of folders that relative paths may count from, the first that has it makes them count from the result's instead.
// Without that folder, and of paths that none has, it is said. Chat templates that nothing is called are said as well.
void move_paths(Writer& keys, const std::vector<std::filesystem::path>& from,
                const std::optional<std::filesystem::path>& to, Imported& result);

// Writes the keys, and what inlay train would say of them.
void finish(const Writer& keys, Imported& result);

}  // namespace inlay::options::importing
