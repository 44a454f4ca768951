#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

// Keys of other programs, axolotl's above all, and what they mean here (docs/migration.md). Messages and `inlay import`
// have their answers from here.
namespace inlay::options::option {

struct Meaning {
  enum class Kind : std::uint8_t {
    same,      // `keys` are what does it here
    unneeded,  // what it asks for is always so, or makes no difference here
    refused    // what it asks for is not done here; `keys` are the nearest that is, which an import writes
  };
  Kind kind = Kind::unneeded;
  std::string why;
  std::vector<std::pair<std::string, std::string>> keys = {};  // ours, with values in YAML
};

// Of a key of a configuration, of a value that one of our keys does not have, and of a key or value in an entry of
// datasets. Nothing where it is not known.
std::optional<Meaning> meaning_of_key(const std::string& key, const YAML::Node& value);
std::optional<Meaning> meaning_of_value(const std::string& key, const YAML::Node& value);
std::optional<Meaning> meaning_in_dataset(const std::string& key, const YAML::Node& value);
// Of an entry's type, in a file with this rl (empty: none): rows that rl learns from are called by the format of their
// conversations in axolotl.
std::optional<Meaning> meaning_of_type(const YAML::Node& value, const std::string& rl);

// Null, "", [] and {}: such keys are as good as absent.
bool is_absent(const YAML::Node& value);

}  // namespace inlay::options::option
