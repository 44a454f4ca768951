#include "study/section.h"

#include <set>
#include <utility>

#include "core/text.h"

namespace inlay::study {

namespace {

// Keys of `inlay train` that a study sets itself, and who does.
const std::map<std::string, std::string>& reserved_keys() {
  static const std::map<std::string, std::string> keys = {
      {"base_model", "it is the study's base_model, then each task's result"},
      {"output_dir", "every run gets a folder below the study's output_dir"},
      {"datasets", "it is the task's train"},
      {"val_set_size", "every task's eval and every held set are evaluated after each task"},
      {"test_datasets", "every task's eval and every held set are evaluated after each task"},
      {"eval_steps", "evaluation follows each task"},
      {"eval_on_start", "the base model is evaluated before the first task"},
      {"early_stopping_patience", "evaluation follows each task"},
      {"early_stopping_threshold", "evaluation follows each task"},
      {"load_best_model_at_end", "evaluation follows each task"},
      {"metric_for_best_model", "evaluation follows each task"},
      {"greater_is_better", "evaluation follows each task"},
      {"evals_per_epoch", "evaluation follows each task"},
      {"eval_strategy", "evaluation follows each task"},
      {"lora_model_dir", "every task begins a new adapter on the model that the previous task left"},
      {"learning_rate", "it belongs to a method: learning_rates: [...]"},
      {"seed", "it belongs to the study: seeds: [...]"}};
  return keys;
}

std::string where(const std::string& source, const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.is_null() ? source : fmt::format("{}, line {}", source, mark.line + 1);
}

}  // namespace

std::string kind_of(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsScalar()) return "'" + node.Scalar() + "'";
  return node.IsMap() ? "a map" : "a list";
}

Section::Section(const YAML::Node& node, std::string source, std::string path,
                 const std::vector<std::string_view>& known, Problems& problems)
    : node_(node), source_(std::move(source)), path_(std::move(path)), problems_(&problems) {
  if (!node.IsMap()) {
    user_error("{}: {}expected a map of keys and values, got {}", where(source_, node),
               path_.empty() ? "" : path_ + ": ", kind_of(node));
  }
  for (const auto& item : node) {
    const std::string line = where(source_, item.first);
    if (!item.first.IsScalar()) {
      problems.add("{}: expected a key", line);
      continue;
    }
    const std::string key = item.first.Scalar();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string guess = nearest(key, known);
      problems.add("{}: {} is not a known key{}", line, name(key),
                   guess.empty() ? "" : "; did you mean " + guess + "?");
    } else if (!values_.emplace(key, item.second).second) {
      problems.add("{}: {} is given twice", line, name(key));
    }
  }
}

YAML::Node Section::at(const std::string& key, std::string_view what) const {
  if (!has(key)) user_error("{}: {} is required: {}", where(source_, node_), name(key), what);
  return values_.at(key);
}

std::string Section::text(const std::string& key, std::string_view what) const {
  const YAML::Node node = at(key, what);
  if (!node.IsScalar() || node.Scalar().empty()) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
  return node.Scalar();
}

std::string Section::label(const std::string& key) const {
  std::string text = this->text(key, "a name");
  const bool plain = text[0] != '.' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                              c == '_' || c == '-' || c == '+';
                     });
  if (!plain) fail(key, fmt::format("expected letters, digits and . _ - + (it names a folder), got '{}'", text));
  return text;
}

std::int64_t Section::count(const std::string& key, std::int64_t otherwise) const {
  if (!has(key)) return otherwise;
  std::int64_t value = 0;
  if (!values_.at(key).IsScalar() || !YAML::convert<std::int64_t>::decode(values_.at(key), value) || value < 1) {
    fail(key, fmt::format("expected an integer of at least 1, got {}", kind_of(values_.at(key))));
  }
  return value;
}

std::vector<std::string> Section::files(const std::string& key, std::string_view what) const {
  const YAML::Node node = at(key, what);
  std::vector<std::string> files;
  if (node.IsScalar()) {
    files.push_back(node.Scalar());
  } else if (node.IsSequence()) {
    for (const auto& entry : node) files.push_back(entry.IsScalar() ? entry.Scalar() : "");
  }
  const bool any_empty = std::any_of(files.begin(), files.end(), [](const std::string& f) { return f.empty(); });
  if (files.empty() || any_empty) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
  return files;
}

YAML::Node Section::entries(const std::string& key, std::string_view what) const {
  const YAML::Node node = at(key, what);
  if (!node.IsSequence() || node.size() == 0) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
  return node;
}

std::vector<Section> Section::list(const std::string& key, const std::vector<std::string_view>& known,
                                   std::string_view what) const {
  std::vector<Section> sections;
  std::size_t index = 0;
  for (const auto& entry : entries(key, what)) {
    const std::string path = fmt::format("{}[{}]", name(key), index++);
    gather([&] { sections.emplace_back(entry, source_, path, known, *problems_); });
  }
  return sections;
}

YAML::Node Section::training() const {
  if (!has("training")) return YAML::Node(YAML::NodeType::Map);
  const YAML::Node node = values_.at("training");
  check_unique(node, name("training"));
  for (const auto& item : node) {
    const auto reserved = reserved_keys().find(item.first.Scalar());
    if (reserved == reserved_keys().end()) continue;
    problems_->add("{}: {}.{} cannot be set: {}", where(source_, item.first), name("training"), reserved->first,
                   reserved->second);
  }
  return node;
}

void Section::fail(const std::string& key, const std::string& message) const {
  user_error("{}: {}: {}", where(source_, values_.at(key)), name(key), message);
}

// Merging would hide a key that is given twice.
void Section::check_unique(const YAML::Node& node, const std::string& path) const {
  if (!node.IsMap()) user_error("{}: {}: expected a map of keys and values", where(source_, node), path);
  std::set<std::string> seen;
  for (const auto& item : node) {
    if (!item.first.IsScalar()) user_error("{}: {}: expected a key", where(source_, item.first), path);
    const std::string key = item.first.Scalar();
    if (!seen.insert(key).second) user_error("{}: {}.{} is given twice", where(source_, item.first), path, key);
    if (item.second.IsMap()) check_unique(item.second, path + "." + key);
  }
}

}  // namespace inlay::study
