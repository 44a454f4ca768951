#include "options/import.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "core/problems.h"
#include "core/text.h"
#include "options/all_fields.h"
#include "options/dataset_fields.h"
#include "options/foreign.h"
#include "options/given_keys.h"
#include "options/import_writer.h"
#include "options/train_options.h"

namespace inlay::options {

using namespace option;
using namespace importing;

namespace {

std::string shortened(std::string text) {
  constexpr std::size_t most = 60;
  std::ranges::replace(text, '\n', ' ');
  return text.size() > most ? text.substr(0, most - 3) + "..." : text;
}

std::string joined(const std::vector<std::pair<std::string, std::string>>& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  return text;
}

class Axolotl {
 public:
  Axolotl(const YAML::Node& root, std::string source) : root_(root), source_(std::move(source)) {
    if (root_["rl"] && root_["rl"].IsScalar()) rl_ = root_["rl"].Scalar();
  }

  Imported run(const std::optional<std::filesystem::path>& to) {
    for (const auto& item : root_) {
      if (item.first.IsScalar() && !is_absent(item.second)) take(item.first, item.second);
    }
    for (const auto& [key, value] : later_) keys_.set(key, YAML::Load(value));
    drop_what_evaluates_nothing();
    add_defaults();
    // axolotl's paths count from the working directory, and people keep data beside the file.
    move_paths(keys_, {std::filesystem::path(source_).parent_path(), "."}, to, result_);
    finish(keys_, result_);
    return std::move(result_);
  }

 private:
  void take(const YAML::Node& name, const YAML::Node& value) {
    const std::string key = name.Scalar();
    const Place place{source_, name.Mark().line + 1, key};
    if (key == "datasets" || key == "test_datasets") return keys_.set(key, entries(value, place));
    const Field* field = find_field(key);
    const auto meaning = field != nullptr ? meaning_of_value(key, value) : meaning_of_key(key, value);
    if (meaning) return translate(key, value, *meaning);
    if (field == nullptr && !(is_section(key) && value.IsMap())) {
      result_.lost.push_back(fmt::format("{}: {}: the key is not known here{}", key, shortened(flow(value)),
                                         did_you_mean(likely_key(key))));
      return;
    }
    try {
      TrainOptions scratch;
      if (field != nullptr) field->set(scratch, value, place);
      keys_.set(key, value);
    } catch (const UserError& error) {
      result_.lost.emplace_back(error.what());
    }
  }

  void translate(const std::string& key, const YAML::Node& value, const Meaning& meaning) {
    const std::string given = fmt::format("{}: {}", key, shortened(flow(value)));
    for (const auto& [ours, text] : meaning.keys) later_.emplace_back(ours, text);
    switch (meaning.kind) {
      case Meaning::Kind::same:
        result_.translated.push_back(
            fmt::format("{} is {}{}", given, joined(meaning.keys), meaning.why.empty() ? "" : ": " + meaning.why));
        break;
      case Meaning::Kind::unneeded: result_.unneeded.push_back(fmt::format("{}: {}", given, meaning.why)); break;
      case Meaning::Kind::refused:
        (meaning.keys.empty() ? result_.lost : result_.open).push_back(fmt::format("{}: {}", given, meaning.why));
        break;
    }
  }

  // Entries of datasets with the keys that are known here.
  YAML::Node entries(const YAML::Node& list, const Place& place) {
    YAML::Node result(YAML::NodeType::Sequence);
    for (const auto& entry : list.IsSequence() ? list : YAML::Load(fmt::format("[{}]", flow(list)))) {
      if (!entry.IsMap()) {
        result.push_back(entry);
        continue;
      }
      YAML::Node kept(YAML::NodeType::Map);
      add_entry(entry, place, kept);
      result.push_back(kept);
    }
    return result;
  }

  void add_entry(const YAML::Node& entry, const Place& place, YAML::Node& kept) {
    for (const auto& item : entry) {
      const std::string key = item.first.Scalar(), full = place.key + "." + key;
      if (is_absent(item.second)) continue;
      if (key == "type" && item.second.IsMap()) {
        add_entry(item.second, place, kept);
      } else if (const auto meaning =
                     key == "type" ? meaning_of_type(item.second, rl_) : meaning_in_dataset(key, item.second)) {
        translate_in_entry(full, item.second, *meaning, kept);
      } else if (find_dataset_field(key) != nullptr) {
        kept[key] = item.second;
      } else {
        result_.lost.push_back(
            fmt::format("{}: the key is not known here{}", full, did_you_mean(likely_entry_key(key))));
      }
    }
  }

  void translate_in_entry(const std::string& key, const YAML::Node& value, const Meaning& meaning, YAML::Node& kept) {
    const std::size_t before = later_.size();
    translate(key, value, meaning);
    later_.resize(before);
    for (const auto& [ours, text] : meaning.keys) {
      if (!kept[ours]) kept[ours] = YAML::Load(text);
    }
  }

  // axolotl passes over them where nothing is to be evaluated on, and here they are contradictions.
  void drop_what_evaluates_nothing() {
    double share = 0;
    if (keys_.has("val_set_size")) YAML::convert<double>::decode(keys_.get("val_set_size"), share);
    if (keys_.has("test_datasets") || share > 0) return;
    for (const char* key :
         {"eval_steps", "evals_per_epoch", "eval_strategy", "early_stopping_patience", "early_stopping_threshold",
          "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "save_strategy"}) {
      if (!keys_.has(key)) continue;
      const std::string value = flow(keys_.get(key));
      if (key == std::string("save_strategy") && value != "best") continue;
      keys_.drop(key);
      result_.unneeded.push_back(
          fmt::format("{}: {}: without test_datasets or val_set_size there is nothing to evaluate on", key, value));
    }
  }

  void add_default(const std::string& key, const char* value, const std::vector<std::string>& others = {}) {
    const auto given = [&](const std::string& other) { return keys_.has(other); };
    if (keys_.has(key) || std::ranges::any_of(others, given)) return;
    keys_.set(key, YAML::Load(value));
    result_.translated.push_back(fmt::format("{}: {} is axolotl's default", key, value));
  }

  void add_defaults() {
    if (keys_.has("lr_scheduler") && keys_.get("lr_scheduler").Scalar() == "constant") {
      for (const char* key : {"warmup_steps", "warmup_ratio"}) {
        if (!keys_.has(key)) continue;
        keys_.drop(key);
        result_.unneeded.push_back(fmt::format("{}: lr_scheduler: constant has no warm-up in axolotl", key));
      }
    } else {
      add_default("warmup_ratio", "0.03", {"warmup_steps"});
    }
    add_default("sequence_len", "512");
    add_default("sample_packing", "false");
    add_default("excess_length_strategy", "drop");
    add_default("saves_per_epoch", "1", {"save_steps", "save_strategy"});
    if (!keys_.has("adapter") || keys_.get("adapter").Scalar() == "none") {
      for (const Field& field : adapter_keys()) {
        if (!keys_.has(field.name)) continue;
        keys_.drop(field.name);
        result_.unneeded.push_back(fmt::format("{}: there is no adapter", field.name));
      }
    }
  }

  static std::vector<Field> adapter_keys() {
    std::vector<Field> found;
    for (const Field& field : fields()) {
      if (field.name.starts_with("lora_") || field.name.starts_with("peft_") || field.name.starts_with("load_in_")) {
        found.push_back(field);
      }
    }
    return found;
  }

  YAML::Node root_;
  std::string source_, rl_;
  Writer keys_;
  std::vector<std::pair<std::string, std::string>> later_;
  Imported result_;
};

}  // namespace

std::string Imported::remarks() const {
  std::string text;
  const auto add = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    text += fmt::format("{}\n", title);
    for (const std::string& line : lines) text += fmt::format("  {}\n", line);
  };
  add("translated:", translated);
  add("not needed here:", unneeded);
  add("not carried over:", lost);
  add("still to do:", open);
  return text;
}

Imported import_axolotl(const std::string& yaml, const std::string& source,
                        const std::optional<std::filesystem::path>& to) {
  const YAML::Node root = load_yaml(yaml, source);
  if (!root.IsMap()) user_error("{}: expected one key and value per line, as in axolotl's files", source);
  return Axolotl(root, source).run(to);
}

}  // namespace inlay::options
