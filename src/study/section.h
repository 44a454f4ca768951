#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "core/problems.h"

namespace inlay::study {

// What stands there, for messages: "'text'", "a map", "nothing".
std::string kind_of(const YAML::Node& node);

// A map of the file under its name there ("tasks[1]"). Keys that are not known or given twice are problems of the file;
// what is wrong with a value is a UserError, so that whoever reads a section stops at the first and others go on.
class Section {
 public:
  Section(const YAML::Node& node, std::string source, std::string path, const std::vector<std::string_view>& known,
          Problems& problems);

  const YAML::Node& node() const { return node_; }
  bool has(const std::string& key) const { return values_.contains(key) && !values_.at(key).IsNull(); }
  YAML::Node at(const std::string& key, std::string_view what) const;
  std::string text(const std::string& key, std::string_view what) const;
  std::string label(const std::string& key) const;  // becomes part of a path and of a table
  std::int64_t count(const std::string& key, std::int64_t otherwise) const;
  std::vector<std::string> files(const std::string& key, std::string_view what) const;  // one, or a list of them

  // A non-empty list of values without repetition, each of them good.
  template <class Value>
  std::vector<Value> values(const std::string& key, bool (*good)(Value), std::string_view what) const {
    std::vector<Value> values;
    for (const auto& entry : entries(key, what)) {
      Value value{};
      if (!entry.IsScalar() || !YAML::convert<Value>::decode(entry, value) || !good(value)) {
        fail(key, fmt::format("expected {}, got {}", what, kind_of(entry)));
      }
      if (std::find(values.begin(), values.end(), value) != values.end()) {
        fail(key, fmt::format("{} is given twice", entry.Scalar()));
      }
      values.push_back(value);
    }
    return values;
  }

  // One Section for each entry of a list that is a map; others are problems.
  std::vector<Section> list(const std::string& key, const std::vector<std::string_view>& known,
                            std::string_view what) const;

  // Keys of `inlay train`, checked only for what the study sets itself.
  YAML::Node training() const;

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;
  template <class Action>
  void gather(Action&& action) const {
    problems_->gather(std::forward<Action>(action));
  }

 private:
  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  YAML::Node entries(const std::string& key, std::string_view what) const;
  void check_unique(const YAML::Node& node, const std::string& path) const;

  YAML::Node node_;
  std::string source_, path_;
  std::map<std::string, YAML::Node> values_;
  Problems* problems_;
};

}  // namespace inlay::study
