#include "study/yaml_maps.h"

namespace inlay::study {

YAML::Node find(const YAML::Node& map, const std::string& key) {
  for (const auto& item : map) {
    if (item.first.Scalar() == key) return item.second;
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

YAML::Node merged(const YAML::Node& under, const YAML::Node& over) {
  YAML::Node result(YAML::NodeType::Map);
  for (const auto& item : under) {
    const YAML::Node replacement = find(over, item.first.Scalar());
    if (!replacement.IsDefined()) {
      result.force_insert(item.first, item.second);
    } else if (item.second.IsMap() && replacement.IsMap()) {
      result.force_insert(item.first, merged(item.second, replacement));
    }
  }
  for (const auto& item : over) {
    const YAML::Node replaced = find(under, item.first.Scalar());
    if (replaced.IsDefined() && replaced.IsMap() && item.second.IsMap()) continue;  // merged above
    result.force_insert(item.first, item.second);
  }
  return result;
}

YAML::Node without(const YAML::Node& map, const std::string& key) {
  YAML::Node result(YAML::NodeType::Map);
  for (const auto& item : map) {
    if (item.first.Scalar() != key) result.force_insert(item.first, item.second);
  }
  return result;
}

}  // namespace inlay::study
