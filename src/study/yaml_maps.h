#pragma once

#include <string>

#include <yaml-cpp/yaml.h>

// Maps of a YAML file, put together from others. Keys keep the lines that they came from.
namespace inlay::study {

// Undefined where it is not there. (YAML::Node's own lookup would make it.)
YAML::Node find(const YAML::Node& map, const std::string& key);
// What stands in `over` replaces what stands in `under`, map by map.
YAML::Node merged(const YAML::Node& under, const YAML::Node& over);
YAML::Node without(const YAML::Node& map, const std::string& key);

}  // namespace inlay::study
