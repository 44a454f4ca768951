#include "options/import.h"

#include <algorithm>
#include <list>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "core/problems.h"
#include "core/text.h"
#include "options/all_fields.h"
#include "options/dataset_fields.h"
#include "options/foreign.h"
#include "options/train_options.h"

namespace inlay::options {

using namespace option;

namespace {

std::string flow(const YAML::Node& value) {
  YAML::Emitter out;
  out.SetSeqFormat(YAML::Flow);
  out.SetMapFormat(YAML::Flow);
  out << value;
  return out.c_str();
}

std::string shortened(std::string text) {
  constexpr std::size_t most = 60;
  std::ranges::replace(text, '\n', ' ');
  return text.size() > most ? text.substr(0, most - 3) + "..." : text;
}

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
  YAML::Node get(const std::string& key) const {
    for (const auto& [name, value] : keys_) {
      if (name == key) return value;
    }
    return {};
  }

  std::string text() const {
    YAML::Emitter out;
    out << YAML::BeginMap;
    std::vector<std::string> done;
    for (const auto& [key, value] : keys_) {
      const std::string section = key.substr(0, key.find('.'));
      if (section == key) {
        out << YAML::Key << key << YAML::Value << value;
        continue;
      }
      if (std::ranges::find(done, section) != done.end()) continue;
      done.push_back(section);
      out << YAML::Key << section << YAML::Value << YAML::BeginMap;
      for (const auto& [other, nested] : keys_) {
        if (other.starts_with(section + "."))
          out << YAML::Key << other.substr(section.size() + 1) << YAML::Value << nested;
      }
      out << YAML::EndMap;
    }
    out << YAML::EndMap;
    return std::string(out.c_str()) + "\n";
  }

 private:
  // A list, whose entries stay where they are: assigning to a YAML::Node changes what all copies of it stand for.
  std::list<std::pair<std::string, YAML::Node>> keys_;
};

std::string joined(const std::vector<std::pair<std::string, std::string>>& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  return text;
}

// What inlay train would say of a result.
std::vector<std::string> problems_of(const std::string& yaml) {
  try {
    parse_options(yaml, "the result", {});
    return {};
  } catch (const SeveralProblems& problems) {
    return problems.each;
  } catch (const UserError& error) {
    return {error.what()};
  }
}

class Axolotl {
 public:
  Axolotl(const YAML::Node& root, std::string source) : root_(root), source_(std::move(source)) {}

  Imported run() {
    for (const auto& item : root_) {
      if (item.first.IsScalar() && !is_absent(item.second)) take(item.first, item.second);
    }
    for (const auto& [key, value] : later_) keys_.set(key, YAML::Load(value));
    add_defaults();
    result_.yaml = keys_.text();
    result_.open = problems_of(result_.yaml);
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
      result_.lost.push_back(fmt::format("{}: {}: the key is not known here", key, shortened(flow(value))));
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
      case Meaning::Kind::refused: result_.lost.push_back(fmt::format("{}: {}", given, meaning.why)); break;
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
      } else if (const auto meaning = meaning_in_dataset(key, item.second)) {
        translate_in_entry(full, item.second, *meaning, kept);
      } else if (find_dataset_field(key) != nullptr) {
        kept[key] = item.second;
      } else {
        result_.lost.push_back(fmt::format("{}: the key is not known here", full));
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
  std::string source_;
  Writer keys_;
  std::vector<std::pair<std::string, std::string>> later_;
  Imported result_;
};

// ---- mini_trainer ---------------------------------------------------------------------------------------------------

struct Argument {
  const char* name;
  const char* ours;  // null: as `why` says
  const char* why;
};
constexpr Argument mini_arguments[] = {
    {"model-name-or-path", "base_model", ""},
    {"output-dir", "output_dir", "the result is in it directly, not under hf_format/"},
    {"learning-rate", "learning_rate", ""},
    {"num-warmup-steps", "warmup_steps", ""},
    {"beta1", "adam_beta1", ""},
    {"beta2", "adam_beta2", ""},
    {"eps", "adam_epsilon", ""},
    {"weight-decay", "weight_decay", ""},
    {"seed", "seed", ""},
    {"max-epochs", "num_epochs", ""},
    {"max-steps", "max_steps", ""},
    {"validation-split", "val_set_size", ""},
    {"validation-frequency", "eval_steps", ""},
    {"osft-unfreeze-rank-ratio", "osft.unfreeze_rank_ratio", "ranks are rounded up to aligned ones"},
    {"min-samples-per-checkpoint", nullptr, "write save_steps: the number of steps between checkpoints"},
    {"checkpoint-at-epoch", "saves_per_epoch", ""},
    {"save-dtype", nullptr, "the result has the base model's dtypes"},
    {"osft-target-patterns", nullptr, "write osft: {targets: [q, k, ...]}"},
    {"lr-scheduler-kwargs", nullptr, "write cosine_min_lr_ratio"},
    {"block-size", nullptr, "pretraining in blocks is not supported; excess_length_strategy: split is nearest"},
};
constexpr const char* mini_unneeded[] = {"use-liger-kernels",
                                         "osft-upcast-dtype",
                                         "osft-output-dtype",
                                         "osft-memory-efficient-init",
                                         "save-final-checkpoint",
                                         "on-demand-checkpointing",
                                         "trust-remote-code",
                                         "log-level",
                                         "nproc-per-node",
                                         "nnodes",
                                         "node-rank",
                                         "rdzv-id",
                                         "rdzv-endpoint"};

// "--key value", "--key=value" and "--flag"; underscores as dashes.
std::vector<std::pair<std::string, std::string>> pairs_of(const std::vector<std::string>& arguments) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) {
      if (!pairs.empty()) user_error("'{}': expected an argument that begins with --", arguments[i]);
      continue;  // torchrun, python -m mini_trainer.train and such
    }
    const std::size_t equals = arguments[i].find('=');
    std::string name = arguments[i].substr(2, equals == std::string::npos ? equals : equals - 2), value = "true";
    std::ranges::replace(name, '_', '-');
    if (equals != std::string::npos) {
      value = arguments[i].substr(equals + 1);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      value = arguments[++i];
    }
    pairs.emplace_back(name, value);
  }
  return pairs;
}

void take_mini(const std::string& name, const std::string& value, Writer& keys, Imported& result) {
  const std::string given = fmt::format("--{} {}", name, value);
  const auto is = [&](const std::string& key, const std::string& text, const std::string& why = "") {
    keys.set(key, YAML::Load(text));
    result.translated.push_back(fmt::format("{} is {}: {}{}", given, key, text, why.empty() ? "" : ": " + why));
  };
  for (const Argument& argument : mini_arguments) {
    if (name != argument.name) continue;
    if (argument.ours != nullptr)
      return is(argument.ours, argument.ours == std::string("saves_per_epoch") ? "1" : value, argument.why);
    result.lost.push_back(fmt::format("{}: {}", given, argument.why));
    return;
  }
  if (std::ranges::find(mini_unneeded, name) != std::end(mini_unneeded)) {
    result.unneeded.push_back(given);
  } else if (name == "data-path") {
    YAML::Node entry(YAML::NodeType::Map), list(YAML::NodeType::Sequence);
    entry["path"] = value;
    list.push_back(entry);
    keys.set("datasets", list);
    result.translated.push_back(given + " is an entry of datasets");
  } else if (name == "batch-size") {
    keys.set("sample_packing", YAML::Node("false"));
    keys.set("micro_batch_size", YAML::Node("1"));
    is("gradient_accumulation_steps", value,
       "a step has as many documents as before. Packed by tokens (sample_packing: true) it would be faster");
  } else if (name == "max-tokens-per-gpu") {
    is("sequence_len", value, "a micro-batch of one document may have as many tokens");
  } else if (name == "lr-scheduler") {
    const bool known = value == "cosine" || value == "linear" || value == "constant" || value == "constant_with_warmup";
    if (known) return is("lr_scheduler", value);
    result.lost.push_back(given + ": write lr_scheduler: cosine, linear or constant");
  } else if (name == "train-dtype") {
    is("dtype", value == "bfloat16" ? "bf16" : "fp32", "master weights are fp32 either way");
  } else if (name == "osft") {
    is("osft.basis", "weights", "activations, the default, forgets less at the same new loss (docs/forgetting.md)");
  } else if (name == "training-mode") {
    if (value == "epoch" || value == "step") return result.unneeded.push_back(given);
    result.lost.push_back(given + ": write num_epochs or max_steps");
  } else if (name == "use-infinite-sampler") {
    result.unneeded.push_back(given);
  } else if (name.starts_with("wandb-") || name.starts_with("mlflow-")) {
    result.lost.push_back(given + ": metrics.jsonl has every step, and inlay report draws it");
  } else {
    result.lost.push_back(given + ": the argument is not known here");
  }
}

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

Imported import_axolotl(const std::string& yaml, const std::string& source) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    user_error("{}, line {}: not valid YAML: {}", source, error.mark.line + 1, error.msg);
  }
  if (!root.IsMap()) user_error("{}: expected one key and value per line, as axolotl's files have", source);
  return Axolotl(root, source).run();
}

Imported import_mini_trainer(const std::vector<std::string>& arguments) {
  Imported result;
  Writer keys;
  for (const auto& [name, value] : pairs_of(arguments)) take_mini(name, value, keys, result);
  if (!keys.has("adam_beta2")) {
    keys.set("adam_beta2", YAML::Node("0.95"));
    result.translated.emplace_back("adam_beta2: 0.95 is mini_trainer's default");
  }
  result.yaml = keys.text();
  result.open = problems_of(result.yaml);
  return result;
}

}  // namespace inlay::options
