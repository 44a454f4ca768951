#include "options/schema.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "options/train_options.h"

namespace inlay::options {

using nlohmann::ordered_json;

namespace {

ordered_json map_schema() {
  return {{"type", "object"},
          {"properties", ordered_json::object()},
          {"required", ordered_json::array()},
          {"additionalProperties", false}};
}

// A default as the table writes it, which is YAML in one line.
ordered_json to_json(const YAML::Node& node) {
  if (node.IsSequence()) {
    ordered_json list = ordered_json::array();
    for (const auto& item : node) list.push_back(to_json(item));
    return list;
  }
  if (node.IsMap()) {
    ordered_json map = ordered_json::object();
    for (const auto& item : node) map[item.first.Scalar()] = to_json(item.second);
    return map;
  }
  const ordered_json value = ordered_json::parse(node.Scalar(), nullptr, false);
  const bool plain = node.Tag() != "!" && (value.is_number() || value.is_boolean());  // "!": it was in quotes
  return plain ? value : ordered_json(node.Scalar());
}

ordered_json key_schema(const OptionKey& key) {
  ordered_json schema = ordered_json::parse(key.schema);
  // A number that is required has a default of 0 that stands for nothing: 0 is refused.
  if (key.required && schema.contains("minimum")) {
    schema["exclusiveMinimum"] = schema["minimum"];
    schema.erase("minimum");
  }
  schema["description"] = key.meaning;
  if (!key.required) schema["default"] = to_json(YAML::Load(key.default_value));
  return schema;
}

// ---- the file to begin with ---------------------------------------------------------------------------------------

std::string comment(const std::string& indent, const OptionKey& key) {
  constexpr std::size_t most = 118;
  std::string out, line = "#" + indent;
  for (const std::string& word : split(fmt::format("{} ({})", key.meaning, key.type), ' ')) {
    if (line.size() + 1 + word.size() > most) {
      out += line + "\n";
      line = "#" + indent;
    }
    line += " " + word;
  }
  return out + line + "\n";
}

std::string required_key(const OptionKey& key, const std::string& mark, const std::string& indent,
                         const std::string& name) {
  return comment(indent, key) + fmt::format("{}{}{}:\n", mark, indent, name);
}

}  // namespace

std::string options_schema() {
  ordered_json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "Configuration of inlay train"}};
  root.update(map_schema());
  for (const OptionKey& key : option_keys()) {
    std::vector<std::string> path = split(key.name, '.');
    const std::string leaf = path.back();
    path.pop_back();
    ordered_json* map = &root;
    for (const std::string& name : path) {
      ordered_json& properties = (*map)["properties"];
      if (!properties.contains(name)) properties[name] = map_schema();
      map = &properties[name];
    }
    (*map)["properties"][leaf] = key_schema(key);
    if (key.required) (*map)["required"].push_back(leaf);
  }
  return root.dump(2) + "\n";
}

std::string options_template() {
  const std::vector<OptionKey> keys = option_keys();
  const auto nested = [](const OptionKey& key) { return key.name.find('.') != std::string::npos; };
  std::string text =
      "# Configuration of inlay train and inlay plan. Fill in the keys that have no value. The other keys show their\n"
      "# defaults: to change one, remove the # before it. docs/configuration.md lists the same keys.\n"
      "# Editors check this file with the schema that inlay config-schema prints.\n\n"
      "# ---- required\n\n";
  for (const OptionKey& key : keys) {
    if (key.required && !nested(key)) text += required_key(key, "", "", key.name) + "\n";
  }
  text += "# ---- optional\n\n";
  std::vector<std::string> open;  // maps begun
  for (const OptionKey& key : keys) {
    if (key.required && !nested(key)) continue;
    std::vector<std::string> path = split(key.name, '.');
    const std::string leaf = path.back();
    path.pop_back();
    const auto same = std::mismatch(open.begin(), open.end(), path.begin(), path.end()).first - open.begin();
    open.resize(static_cast<std::size_t>(same));
    for (; open.size() < path.size(); open.push_back(path[open.size()])) {
      text += fmt::format("#{}{}:\n", std::string(2 * open.size(), ' '), path[open.size()]);
    }
    const std::string indent(2 * path.size(), ' ');
    text += key.required ? required_key(key, "#", indent, leaf)
                         : comment(indent, key) + fmt::format("#{}{}: {}\n", indent, leaf, key.default_value);
    text += "\n";
  }
  return text;
}

}  // namespace inlay::options
