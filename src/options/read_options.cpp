#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "options/adapter_fields.h"
#include "options/all_fields.h"
#include "options/foreign.h"
#include "options/given_keys.h"
#include "options/objective_fields.h"
#include "options/paths.h"
#include "options/run_needs.h"
#include "options/train_options.h"
#include "options/watching_fields.h"

namespace inlay::options {

using namespace option;

namespace {

[[noreturn]] void unknown_key(const Place& place) {
  user_error("{}: {} is not a known key{}", place.where(), place.key, did_you_mean(likely_key(place.key)));
}

std::string in_braces(const std::vector<std::pair<std::string, std::string>>& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  return text;
}

// Sets what is given. What other programs' keys mean comes last, where our own keys leave it open.
class Setter {
 public:
  Setter(TrainOptions& options, const GivenKeys& given) : options_(options), given_(given) {}

  void set(const Given& item) {
    const auto& [place, value] = item;
    const Field* field = find_field(place.key);
    if (place.key.starts_with("osft")) options_.osft.enabled = true;
    if (field == nullptr && is_section(place.key) && value.IsMap()) return;  // it is empty
    const auto meaning = field != nullptr ? meaning_of_value(place.key, value) : meaning_of_key(place.key, value);
    if (meaning) return translate(place, value, *meaning);
    if (field != nullptr) return field->set(options_, value, place);
    if (is_section(place.key)) place.fail("expected a map of keys");
    meant_.insert(likely_key(place.key));
    unknown_key(place);
  }

  void finish() {
    for (const auto& [place, key, value] : translated_) find_field(key)->set(options_, YAML::Load(value), place);
    if (!unneeded_.empty()) {
      options_.notes.push_back(fmt::format("not needed here: {} (docs/migration.md)", join(unneeded_, ", ")));
    }
  }

  // What was probably meant by keys that are not known: nobody need hear that these are missing.
  const std::set<std::string>& meant() const { return meant_; }
  // Where keys stand that were given under another name.
  std::map<std::string, Place> translated() const {
    std::map<std::string, Place> places;
    for (const auto& [place, key, value] : translated_) places.emplace(key, place);
    return places;
  }

 private:
  struct Translated {
    Place place;
    std::string key, value;
  };

  bool is_given(const std::string& key) const {
    return std::ranges::any_of(given_.keys, [&](const Given& g) {
      if (g.place.key != key) return false;
      const auto meaning = meaning_of_value(key, g.value);
      return !meaning || meaning->kind != Meaning::Kind::unneeded;  // as good as absent
    });
  }

  void translate(const Place& place, const YAML::Node& value, const Meaning& meaning) {
    if (meaning.kind == Meaning::Kind::refused) place.fail("{}", meaning.why);
    if (meaning.kind == Meaning::Kind::unneeded) {
      unneeded_.push_back(place.key);
      return;
    }
    for (const auto& [key, text] : meaning.keys) {
      if (key == place.key || !is_given(key)) translated_.push_back({place, key, text});
    }
    const std::string shown = value.IsScalar() ? value.Scalar() : "…";
    options_.notes.push_back(fmt::format("{}: {}: {} is read as {}{}", place.where(), place.key, shown,
                                         in_braces(meaning.keys), meaning.why.empty() ? "" : "; " + meaning.why));
  }

  TrainOptions& options_;
  const GivenKeys& given_;
  std::vector<Translated> translated_;
  std::vector<std::string> unneeded_;
  std::set<std::string> meant_;
};

// What is wrong with keys together.
class Validation {
 public:
  Validation(const TrainOptions& options, KeyProblems& problems) : o_(options), problems_(problems) {}

  void run() {
    require(!o_.base_model.empty(), "base_model", "the model to start from: a folder, or its name on the hub");
    require(!o_.output_dir.empty(), "output_dir", "the folder that the run is written to");
    require(!o_.datasets.empty(), "datasets", "a list of {path: FILE}");
    require(o_.learning_rate > 0, "learning_rate", "a number above 0");
    if (o_.warmup_steps > 0 && o_.warmup_ratio > 0) {
      add("warmup_steps", "warmup_steps and warmup_ratio are both given; one of them is enough");
    }
    if (o_.max_steps == 0 && !(o_.num_epochs > 0)) add("num_epochs", "num_epochs: expected a number above 0");
    if (o_.val_set_size > 0 && !o_.test_datasets.empty()) {
      add("val_set_size", "val_set_size and test_datasets are both given; one of them is enough");
    }
    when("eval", o_.eval_strategy, o_.eval_steps > 0 || o_.eval_share > 0, o_.evals_per_epoch > 0);
    when("save", o_.save_strategy, o_.save_steps > 0 || o_.save_share > 0, o_.saves_per_epoch > 0);
    if ((o_.eval_steps > 0 || o_.eval_share > 0) && !o_.evaluates()) {
      add("eval_steps",
          "eval_steps is given, but neither test_datasets nor val_set_size: there is nothing to evaluate on");
    }
    attention();
    memory();
    muon();
    schedule_free();
    validate_watching(o_, problems_);
    validate_adapter(o_, problems_);
    validate_objective(o_, problems_);
    osft();
  }

 private:
  void add(const std::string& key, std::string_view what) { problems_.add(key, what); }
  void require(bool good, const std::string& key, const char* what) {
    if (good || problems_.is_wrong(key)) return;
    add(key, problems_.is_given(key) ? fmt::format("{}: expected {}, got {}", key, what, value_text(o_, key))
                                     : fmt::format("{} is required: {}", key, what));
  }

  void when(const std::string& what, When strategy, bool steps, bool per_epoch) {
    const std::string key = what + "_strategy";
    if (steps && per_epoch) {
      add(what + "_steps", fmt::format("{0}_steps and {0}s_per_epoch are both given; one of them is enough", what));
    } else if (strategy != When::steps && (steps || per_epoch)) {
      add(key, fmt::format("{}: {} does not go with {}{}; leave one of them out", key, value_text(o_, key), what,
                           steps ? "_steps" : "s_per_epoch"));
    }
  }

  void muon() {
    if (o_.optimizer != OptimizerKind::muon) {
      const TrainOptions::Muon defaults;
      const auto unused = [&](const char* key) {
        add(key, fmt::format("{} is for optimizer: muon; add that, or leave the key out", key));
      };
      if (o_.muon.momentum != defaults.momentum) unused("muon.momentum");
      if (o_.muon.scale != defaults.scale) unused("muon.scale");
      return;
    }
    if (o_.optimizer_state == DType::u8) {
      add("optimizer_state", "optimizer: muon keeps one moment, in fp32 or bf16; optimizer_state: 8bit is for AdamW");
    }
    if (o_.adapter.enabled() || o_.osft.enabled) {
      add("optimizer", fmt::format("optimizer: muon is for matrices that train as a whole, and {} trains factors of "
                                   "them; leave the key out",
                                   o_.adapter.enabled() ? "an adapter" : "osft"));
    }
    if (o_.parallel.zero && *o_.parallel.zero != parallel::Zero::none) {
      add("parallel.zero",
          "optimizer: muon needs whole matrices, but processes would divide their rows; write parallel: {zero: 0}");
    }
  }

  void schedule_free() {
    if (o_.optimizer != OptimizerKind::schedule_free) return;
    if (o_.optimizer_state != DType::f32) {
      add("optimizer_state",
          "optimizer: schedule_free_adamw keeps a second copy of the weights, in fp32; leave the key out");
    }
    if (problems_.is_given("lr_scheduler") && o_.lr_scheduler != Decay::constant) {
      add("lr_scheduler",
          "optimizer: schedule_free_adamw averages instead of lowering the learning rate; write lr_scheduler: "
          "constant, or leave the key out");
    }
    if (o_.adam_beta1 == 0) add("adam_beta1", "optimizer: schedule_free_adamw needs adam_beta1 above 0");
    if (o_.osft.enabled || o_.adapter.keeps_to_free()) {
      add("optimizer", fmt::format("optimizer: schedule_free_adamw does not go with {}, which projects every change; "
                                   "leave the key out",
                                   o_.osft.enabled ? "osft" : "lora_init: free"));
    }
    if (o_.parallel.zero && *o_.parallel.zero != parallel::Zero::none) {
      add("parallel.zero",
          "optimizer: schedule_free_adamw needs whole weights, but processes would divide their rows; write "
          "parallel: {zero: 0}");
    }
  }

  void attention() {
    try {
      ops::AttentionRule::parse(o_.attention.mask, o_.attention.score);
    } catch (const UserError& error) {
      add("attention.mask", error.what());
    }
  }

  void memory() {
    if (o_.memory.host && o_.device == Device::cpu) {
      add("memory.host",
          "memory.host is for what does not stay on a GPU; with device: cpu everything is in memory.device");
    }
    problems_.gather([&] {
      if (o_.activation_policy == "auto" || model::ActivationPolicy::parse(o_.activation_policy).offloads()) return;
      const auto refuse = [&](const char* key) {
        add(key,
            fmt::format("{} has nothing to hold: activation_policy {} keeps everything on the device; leave one of the "
                        "two out",
                        key, o_.activation_policy));
      };
      if (o_.memory.disk != "off") refuse("memory.disk");
      if (o_.memory.host && o_.memory.host_layers == std::int64_t{0}) refuse("memory.host");
    });
  }

  void osft() {
    if (o_.osft.enabled) {
      require(o_.osft.unfreeze_rank_ratio > 0, "osft.unfreeze_rank_ratio", "a number above 0 and at most 1");
      if (o_.osft.basis == osft::BasisKind::activations && o_.osft.route) {
        add("osft.route", "osft.route belongs to basis weights; with basis activations there is only one route");
      }
    }
    if (!o_.adapter.keeps_to_free()) return;
    for (const Field& field : osft_fields()) {
      if (serves_free_adapters(field.name) || value_text(o_, field.name) == value_text({}, field.name)) continue;
      add(field.name,
          fmt::format(
              "{} does not go with an adapter: with lora_init: free, osft has only calibration, basis_on and cache{}",
              field.name, field.name == "osft.unfreeze_rank_ratio" ? "; the share is lora_free_ratio" : ""));
    }
  }

  const TrainOptions& o_;
  KeyProblems& problems_;
};

// Keys of a board that nothing goes to, where that was asked for: otherwise they are problems.
void note_unused_boards(TrainOptions& options) {
  if (options.reports_to("mlflow")) return;
  std::vector<std::string> unused;
  if (!options.mlflow_tracking_uri.empty()) unused.emplace_back("mlflow_tracking_uri");
  if (!options.mlflow_experiment_name.empty()) unused.emplace_back("mlflow_experiment_name");
  if (!options.mlflow_run_name.empty()) unused.emplace_back("mlflow_run_name");
  if (!unused.empty()) {
    options.notes.push_back(fmt::format("not needed with report_to: none: {}", join(unused, ", ")));
  }
}

// What an entry's rows are called depends on what is learned from them.
void read_types_by_objective(TrainOptions& options, const GivenKeys& given, KeyProblems& problems) {
  if (!options.preference.enabled()) return;
  const std::string rl = value_text(options, "rl");
  for (const auto& [key, list] : {std::pair(std::string("datasets"), &options.datasets),
                                  std::pair(std::string("test_datasets"), &options.test_datasets)}) {
    for (std::size_t i = 0; i < list->size() && !problems.is_wrong(key); ++i) {
      const auto entry = given.entry(key, i);
      if (!entry || !entry->IsMap() || !(*entry)["type"].IsDefined()) continue;
      const YAML::Node type = (*entry)["type"];
      const auto meaning = type.IsScalar() ? meaning_of_type(type, rl) : std::nullopt;
      if (!meaning) continue;
      const Place place = given.place_of_entry(key, i, "type");
      if (meaning->kind == Meaning::Kind::refused) {
        problems.gather([&] { place.fail("{}", meaning->why); });
        continue;
      }
      for (const auto& [ours, text] : meaning->keys) {
        if (ours != "type" || text == (*list)[i].format.type) continue;
        (*list)[i].format.type = text;
        options.notes.push_back(fmt::format("{}: {}: {} is read as {}, which rl: {} learns from", place.where(),
                                            place.key, type.Scalar(), text, rl));
      }
    }
  }
}

// What is to be looked at once all keys have been read: its problems come in the same message.
using Further = std::function<void(TrainOptions& options, const GivenKeys& given, KeyProblems& problems)>;

// folder: of the file, where its relative paths begin; empty: in the working directory.
TrainOptions parse(const YAML::Node& root, const std::string& source, const Overrides& overrides,
                   const std::filesystem::path& folder, const Further& further = {}) {
  if (!root.IsMap() && !root.IsNull()) user_error("{}: expected one key and value per line", source);
  TrainOptions options;
  options.source = source;
  Problems problems;
  const GivenKeys given = given_keys(root, source, overrides, problems);
  Setter setter(options, given);
  std::set<std::string> wrong;
  for (const Given& item : given.keys) {
    wrong.insert(item.place.key);
    problems.gather([&] {
      setter.set(item);
      locate(options, item.place.key, item.place.line > 0 ? folder : std::filesystem::path());
      wrong.erase(item.place.key);
    });
  }
  problems.gather([&] { setter.finish(); });
  if (options.adapter.keeps_to_free()) options.osft.enabled = false;  // its keys serve the adapter
  wrong.insert(setter.meant().begin(), setter.meant().end());
  KeyProblems together(source, given, std::move(wrong), problems);
  together.stand_in(setter.translated());
  read_types_by_objective(options, given, together);
  Validation(options, together).run();
  if (further) further(options, given, together);
  problems.sort_by_line(source);
  problems.raise();
  note_unused_boards(options);
  if (options.optimizer == OptimizerKind::schedule_free) options.lr_scheduler = Decay::constant;  // the one in force
  if (!options.evaluates() && (options.evals_per_epoch > 0 || options.eval_strategy == When::epoch)) {
    options.notes.push_back(fmt::format("{}: there is nothing to evaluate on; set val_set_size or test_datasets",
                                        options.evals_per_epoch > 0 ? "evals_per_epoch" : "eval_strategy"));
    options.evals_per_epoch = 0;
    options.eval_strategy = When::never;
  }
  return options;
}

}  // namespace

TrainOptions parse_options(const std::string& yaml, const std::string& source, const Overrides& overrides) {
  return parse(load_yaml(yaml, source), source, overrides, {});
}

TrainOptions parse_options(const YAML::Node& root, const std::string& source, const Overrides& overrides) {
  return parse(root, source, overrides, {});
}

namespace {

TrainOptions of_run(const std::string& yaml, const std::string& source, const Overrides& overrides,
                    const std::filesystem::path& folder, Needed needed, const io::HubAccess& hub) {
  TrainOptions options = parse(load_yaml(yaml, source), source, overrides, folder,
                               [&](TrainOptions& read, const GivenKeys& given, KeyProblems& problems) {
                                 find_needs(read, given, needed, hub, problems);
                               });
  if (!options.special_tokens.empty() || !options.tokens.empty()) change_base(options, source);
  return options;
}

}  // namespace

TrainOptions load_options(const std::filesystem::path& file, const Overrides& overrides, Needed needed,
                          const io::HubAccess& hub) {
  const std::string yaml = io::read_file(file, std::size_t{16} << 20);
  return of_run(yaml, file.string(), overrides, file.parent_path(), needed, hub);
}

TrainOptions parse_run_options(const std::string& yaml, const std::string& source, const Overrides& overrides,
                               Needed needed) {
  return of_run(yaml, source, overrides, {}, needed, {});
}

}  // namespace inlay::options
