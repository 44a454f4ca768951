#include "study/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "io/hub.h"

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
      {"lora_model_dir", "every task begins a new adapter on the model that the task before has left"},
      {"learning_rate", "it belongs to a method: learning_rates: [...]"},
      {"seed", "it belongs to the study: seeds: [...]"}};
  return keys;
}

std::string where(const std::string& source, const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.is_null() ? source : fmt::format("{}, line {}", source, mark.line + 1);
}

std::string kind_of(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsScalar()) return "'" + node.Scalar() + "'";
  return node.IsMap() ? "a map" : "a list";
}

// A map of the file under its name there ("tasks[1]"), with each of its keys once and none that is not known.
class Section {
 public:
  Section(const YAML::Node& node, std::string source, std::string path, const std::vector<std::string_view>& known)
      : node_(node), source_(std::move(source)), path_(std::move(path)) {
    if (!node.IsMap()) {
      user_error("{}: {}expected a map of keys and values, got {}", where(source_, node),
                 path_.empty() ? "" : path_ + ": ", kind_of(node));
    }
    for (const auto& item : node) {
      const std::string line = where(source_, item.first);
      if (!item.first.IsScalar()) user_error("{}: expected a key", line);
      const std::string key = item.first.Scalar();
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        const std::string guess = nearest(key, known);
        user_error("{}: {} is not a known key{}", line, name(key),
                   guess.empty() ? "" : "; did you mean " + guess + "?");
      }
      if (!values_.emplace(key, item.second).second) user_error("{}: {} is given twice", line, name(key));
    }
  }

  bool has(const std::string& key) const { return values_.contains(key) && !values_.at(key).IsNull(); }

  YAML::Node at(const std::string& key, std::string_view what) const {
    if (!has(key)) user_error("{}: {} is required: {}", where(source_, node_), name(key), what);
    return values_.at(key);
  }

  std::string text(const std::string& key, std::string_view what) const {
    const YAML::Node node = at(key, what);
    if (!node.IsScalar() || node.Scalar().empty()) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
    return node.Scalar();
  }

  // Becomes part of a path and of a table.
  std::string label(const std::string& key) const {
    std::string text = this->text(key, "a name");
    const bool plain = text[0] != '.' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
                         return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                                c == '.' || c == '_' || c == '-' || c == '+';
                       });
    if (!plain) {
      fail(key, fmt::format("expected letters, digits and . _ - + (it names a folder), got '{}'", text));
    }
    return text;
  }

  // A file, or a list of them.
  std::vector<std::string> files(const std::string& key, std::string_view what) const {
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

  // A non-empty list of values without repetition, each within [least, ...).
  template <class Value>
  std::vector<Value> values(const std::string& key, bool (*good)(Value), std::string_view what) const {
    const YAML::Node node = at(key, what);
    if (!node.IsSequence() || node.size() == 0) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
    std::vector<Value> values;
    for (const auto& entry : node) {
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

  // One Section for each entry of a list.
  std::vector<Section> list(const std::string& key, const std::vector<std::string_view>& known,
                            std::string_view what) const {
    const YAML::Node node = at(key, what);
    if (!node.IsSequence() || node.size() == 0) fail(key, fmt::format("expected {}, got {}", what, kind_of(node)));
    std::vector<Section> sections;
    for (const auto& entry : node) {
      sections.emplace_back(entry, source_, fmt::format("{}[{}]", name(key), sections.size()), known);
    }
    return sections;
  }

  // Keys of `inlay train`, checked only for what the study sets itself; null where there are none.
  YAML::Node training() const {
    if (!has("training")) return YAML::Node(YAML::NodeType::Map);
    const YAML::Node node = values_.at("training");
    check_unique(node, name("training"));
    for (const auto& item : node) {
      const auto reserved = reserved_keys().find(item.first.Scalar());
      if (reserved != reserved_keys().end()) {
        user_error("{}: {}.{} cannot be set: {}", where(source_, item.first), name("training"), reserved->first,
                   reserved->second);
      }
    }
    return node;
  }

  [[noreturn]] void fail(const std::string& key, const std::string& message) const {
    user_error("{}: {}: {}", where(source_, values_.at(key)), name(key), message);
  }

 private:
  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  // Merging would hide a key that is given twice.
  void check_unique(const YAML::Node& node, const std::string& path) const {
    if (!node.IsMap()) user_error("{}: {}: expected a map of keys and values", where(source_, node), path);
    std::set<std::string> seen;
    for (const auto& item : node) {
      if (!item.first.IsScalar()) user_error("{}: {}: expected a key", where(source_, item.first), path);
      const std::string key = item.first.Scalar();
      if (!seen.insert(key).second) user_error("{}: {}.{} is given twice", where(source_, item.first), path, key);
      if (item.second.IsMap()) check_unique(item.second, path + "." + key);
    }
  }

  YAML::Node node_;
  std::string source_, path_;
  std::map<std::string, YAML::Node> values_;
};

YAML::Node find(const YAML::Node& map, const std::string& key) {
  for (const auto& item : map) {
    if (item.first.Scalar() == key) return item.second;
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

// What stands in `over` replaces what stands in `under`, map by map. Keys keep the lines that they came from.
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

YAML::Node without_osft(const YAML::Node& keys) {
  YAML::Node result(YAML::NodeType::Map);
  for (const auto& item : keys) {
    if (item.first.Scalar() != "osft") result.force_insert(item.first, item.second);
  }
  return result;
}

Metric parse_metric(const Section& section) {
  if (!section.has("metric")) return Metric::loss;
  constexpr const char* expected = "one of loss, token_accuracy, choice_accuracy";
  const std::string text = section.text("metric", expected);
  for (const Metric metric : {Metric::loss, Metric::token_accuracy, Metric::choice_accuracy}) {
    if (text == name_of(metric)) return metric;
  }
  section.fail("metric", fmt::format("expected {}, got '{}'", expected, text));
}

KeepModels parse_keep(const Section& section) {
  if (!section.has("keep_models")) return KeepModels::last;
  const std::string text = section.text("keep_models", "one of last, all, none");
  if (text == "last") return KeepModels::last;
  if (text == "all") return KeepModels::all;
  if (text == "none") return KeepModels::none;
  section.fail("keep_models", fmt::format("expected one of last, all, none, got '{}'", text));
}

template <class Item>
void check_names(const std::vector<Item>& items, const Section& section) {
  for (std::size_t i = 0; i + 1 < items.size(); ++i) {
    if (items[i].name == items.back().name) section.fail("name", fmt::format("'{}' is given twice", items[i].name));
  }
}

// Training keys with what the study itself sets, read as `inlay train` would read them.
options::TrainOptions read_training(YAML::Node keys, const ContinualOptions& study,
                                    const std::vector<std::string>& datasets, double learning_rate,
                                    const std::string& source) {
  keys = merged(keys, YAML::Node(YAML::NodeType::Map));  // the caller's map stays as it is
  keys["base_model"] = study.base_model;
  keys["output_dir"] = study.output_dir;
  keys["datasets"] = datasets;
  keys["learning_rate"] = fmt::format("{}", learning_rate);
  return options::parse_options(keys, source, {});
}

// Puts the training data of the tasks before this one in the place of the word "earlier".
void name_earlier_data(options::TrainOptions& training, const ContinualOptions& study, std::size_t task,
                       const std::string& method, const std::string& source) {
  std::vector<std::string>& data = training.osft.calibration.data;
  const auto word = std::find(data.begin(), data.end(), "earlier");
  if (word == data.end()) return;
  data.erase(word);
  for (std::size_t t = 0; t < task; ++t) {
    for (const std::string& file : study.tasks[t].train) {
      if (std::find(data.begin(), data.end(), file) == data.end()) data.push_back(file);
    }
  }
  if (data.empty()) {
    user_error("{}: method {}: osft.calibration.data: nothing is earlier than the first task; add sample or a file",
               source, method);
  }
}

}  // namespace

ContinualOptions parse_continual_options(const std::string& yaml, const std::string& source) {
  YAML::Node node;
  try {
    node = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    user_error("{}, line {}: not valid YAML: {}", source, error.mark.line + 1, error.msg);
  }
  const Section root(
      node, source, "",
      {"base_model", "output_dir", "tasks", "held", "methods", "seeds", "training", "baseline", "keep_models"});
  ContinualOptions options;
  options.text = yaml;
  options.base_model = io::model_folder(root.text("base_model", "the model to start from"), "", {});
  options.output_dir = root.text("output_dir", "the folder that the study is written to");
  options.keep_models = parse_keep(root);
  if (root.has("seeds")) {
    options.seeds = root.values<std::int64_t>(
        "seeds", [](std::int64_t seed) { return seed >= 0; }, "a list of integers of at least 0");
  }

  std::vector<YAML::Node> task_keys;
  for (const Section& section :
       root.list("tasks", {"name", "train", "eval", "metric", "training"}, "a list of {name, train, eval, metric}")) {
    options.tasks.push_back({.name = section.label("name"),
                             .train = section.files("train", "a JSONL file or a list of them"),
                             .eval = section.files("eval", "a JSONL file or a list of them"),
                             .metric = parse_metric(section)});
    check_names(options.tasks, section);
    task_keys.push_back(section.training());
  }
  if (root.has("held")) {
    for (const Section& section : root.list("held", {"name", "data", "metric"}, "a list of {name, data, metric}")) {
      options.held.push_back({.name = section.label("name"),
                              .data = section.files("data", "a JSONL file or a list of them"),
                              .metric = parse_metric(section)});
      check_names(options.held, section);
    }
  }

  const YAML::Node common = root.training();
  for (const Section& section :
       root.list("methods", {"name", "learning_rates", "training"}, "a list of {name, learning_rates, training}")) {
    ContinualMethod method;
    method.name = section.label("name");
    method.learning_rates = section.values<double>(
        "learning_rates", [](double rate) { return rate > 0 && std::isfinite(rate); }, "a list of numbers above 0");
    const YAML::Node keys = merged(common, section.training());
    for (std::size_t t = 0; t < options.tasks.size(); ++t) {
      // A task says how OSFT goes about it, not whether it is used.
      const YAML::Node of_task = find(keys, "osft").IsDefined() ? task_keys[t] : without_osft(task_keys[t]);
      method.training.push_back(
          read_training(merged(keys, of_task), options, options.tasks[t].train, method.learning_rates[0], source));
      name_earlier_data(method.training[t], options, t, method.name, source);
    }
    options.methods.push_back(std::move(method));
    check_names(options.methods, section);
  }

  options.evaluation = read_training(common, options, options.tasks[0].train, 1, source);
  for (std::size_t t = 0; t < options.tasks.size(); ++t) {
    options.tasks[t].evaluation =
        read_training(merged(common, without_osft(task_keys[t])), options, options.tasks[t].train, 1, source);
  }

  const auto named = [&](const std::string& name) {
    return std::any_of(options.methods.begin(), options.methods.end(),
                       [&](const ContinualMethod& method) { return method.name == name; });
  };
  options.baseline = root.has("baseline") ? root.text("baseline", "the name of a method")
                     : named("sft")       ? "sft"
                                          : options.methods[0].name;
  if (!named(options.baseline)) {
    root.fail("baseline", fmt::format("expected the name of a method, got '{}'", options.baseline));
  }
  return options;
}

ContinualOptions load_continual_options(const std::filesystem::path& file) {
  return parse_continual_options(io::read_file(file, std::size_t{16} << 20), file.string());
}

std::string rate_name(double rate) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), rate, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);  // 2.5e-04
  const std::size_t exponent = text.find('e') + 1;
  const std::size_t digits = text.find_first_of("123456789", exponent);
  const std::string sign = text[exponent] == '-' ? "-" : "";
  return text.substr(0, exponent) + sign + (digits == text.npos ? "0" : text.substr(digits));
}

}  // namespace inlay::study
