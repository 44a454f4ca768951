#pragma once

#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/problems.h"
#include "options/fields.h"

// Keys with their values as a file and a command line give them, before anything is known of what they mean.
namespace inlay::options::option {

// A key with a value, wherever it stands: keys of nested maps are written with dots.
struct Given {
  Place place;
  YAML::Node value;
};

struct GivenKeys {
  // A list, whose entries stay where they are: assigning to a YAML::Node changes what all copies of it stand for.
  std::list<Given> keys;
  std::set<std::string> taken_back;  // given in the file, and without a value on the command line

  std::map<std::string, Place> places() const;
  // Of an entry in a list such as datasets, or of a key in it where it has that.
  Place place_of_entry(const std::string& list, std::size_t index, std::string_view key = {}) const;
  // The entry itself, where the list has so many.
  std::optional<YAML::Node> entry(const std::string& list, std::size_t index) const;
};

// What is wrong with YAML as such is a UserError that says where.
YAML::Node load_yaml(const std::string& yaml, const std::string& source);

GivenKeys given_keys(const YAML::Node& root, const std::string& source, const Overrides& overrides, Problems& problems);

// What a key that nothing is called may mean: names of other programs, and our own, misspelled. Empty: no idea.
std::string likely_key(const std::string& key);
// The same of a key in an entry of datasets.
std::string likely_entry_key(const std::string& key);
// "; did you mean this?", or nothing.
std::string did_you_mean(const std::string& guess);

}  // namespace inlay::options::option
