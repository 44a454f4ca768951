#include "study/record.h"

#include <algorithm>
#include <map>
#include <set>

#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/paths.h"
#include "study/results.h"
#include "train/checkpoint.h"

namespace inlay::study {

namespace fs = std::filesystem;

namespace {

constexpr const char* record_name = "study.json";
constexpr const char* merged_folder = "merged";
constexpr std::string_view data_prefix = "content of ";

// What a study means, one fact a line: "sft, task gsm8k: max_steps" is "300".
using Facts = std::map<std::string, std::string>;

// A study means the same wherever it is looked at from.
std::string whole(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  return error ? path : absolute.string();
}

std::string whole_paths(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) text += (text.empty() ? "" : ", ") + whole(file);
  return text;
}

void flatten(Facts& facts, const std::string& prefix, const YAML::Node& node) {
  if (node.IsMap()) {
    for (const auto& item : node) flatten(facts, prefix + "." + item.first.Scalar(), item.second);
  } else if (node.IsSequence()) {
    for (std::size_t i = 0; i < node.size(); ++i) flatten(facts, fmt::format("{}[{}]", prefix, i), node[i]);
  } else {
    facts[prefix] = node.IsNull() ? "nothing" : node.Scalar();
  }
}

// Every training key that bears on the result and is the same in all of the method's runs of a task.
void add_training(Facts& facts, const std::string& who, const options::TrainOptions& training) {
  static const std::set<std::string> beside = {"base_model",      "output_dir",          "datasets",
                                               "test_datasets",   "learning_rate",       "seed",
                                               "logging_steps",   "eval_steps",          "eval_on_start",
                                               "save_steps",      "save_total_limit",    "save_only_model",
                                               "report_to",       "mlflow_tracking_uri", "mlflow_experiment_name",
                                               "mlflow_run_name", "activation_policy",   "eval_strategy",
                                               "save_strategy",   "evals_per_epoch",     "saves_per_epoch",
                                               "sample_prompts",  "sample_as",           "sample_steps",
                                               "sample_tokens"};
  for (const auto& item : YAML::Load(options::to_yaml(training))) {
    const std::string key = item.first.Scalar();
    if (!beside.contains(key)) flatten(facts, who + ": " + key, item.second);
  }
}

std::string method_prefix(const std::string& name) { return name + ", task "; }

void add_answering(Facts& facts, const std::string& who, const Answering& answering) {
  facts[who + "match"] = name_of(answering.rule.match);
  facts[who + "marker"] = answering.rule.marker;
  facts[who + "max_new_tokens"] = std::to_string(answering.max_new_tokens);
  facts[who + "limit"] = std::to_string(answering.limit);
}

Facts facts_of(const ContinualOptions& options) {
  Facts facts = {{"base_model", whole(options.base_model)},
                 {"evaluation: device", options::value_text(options.evaluation, "device")},
                 {"evaluation: dtype", options::value_text(options.evaluation, "dtype")},
                 {"evaluation: sequence_len", std::to_string(options.evaluation.sequence_len)}};
  for (std::size_t t = 0; t < options.tasks.size(); ++t) {
    const ContinualTask& task = options.tasks[t];
    const std::string who = fmt::format("tasks[{}].", t);
    facts[who + "name"] = task.name;
    facts[who + "train"] = whole_paths(task.train);
    facts[who + "eval"] = whole_paths(task.eval);
    facts[who + "metric"] = name_of(task.metric);
    facts[who + "sequence_len"] = std::to_string(task.evaluation.sequence_len);
    if (task.metric == Metric::exact_match) add_answering(facts, who, task.answering);
    for (const ContinualMethod& method : options.methods) {
      const std::string run = method_prefix(method.name) + task.name;
      if (!method.after) {
        add_training(facts, run, method.training[t]);
        continue;
      }
      facts[run + ": after"] = options.methods[method.after->method].name;
      facts[run + ": how"] = method.after->how == train::TakeBack::average ? "average" : "keep";
    }
  }
  for (std::size_t h = 0; h < options.held.size(); ++h) {
    const HeldSet& held = options.held[h];
    const std::string who = fmt::format("held[{}].", h);
    facts[who + "name"] = held.name;
    facts[who + "data"] = whole_paths(held.data);
    // The other metrics are computed of every set, whichever is shown.
    if (held.metric == Metric::exact_match) facts[who + "metric"] = name_of(held.metric);
    if (held.own_temperature) facts[who + "temperature"] = fmt::format("{}", *held.own_temperature);
    if (held.own_temperature || held.metric == Metric::exact_match) add_answering(facts, who, held.answering);
  }
  return facts;
}

void add_data(Facts& facts, const ContinualOptions& options) {
  const auto add = [&](const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      std::string& fact = facts[std::string(data_prefix) + whole(file)];
      if (fact.empty()) fact = fmt::format("{:016x}", io::content_hash(io::MappedFile(file).bytes()));
    }
  };
  for (const ContinualTask& task : options.tasks) {
    add(task.train);
    add(task.eval);
  }
  for (const HeldSet& held : options.held) add(held.data);
  for (const ContinualMethod& method : options.methods) {
    for (const options::TrainOptions& training : method.training) {
      if (!training.finds_directions()) continue;
      for (const std::string& source : training.osft.calibration.data) {
        if (source != "sample") add({source});
      }
    }
  }
  // Another model under the same name would be another study.
  const fs::path base = whole(options.base_model);
  facts[std::string(data_prefix) + (base / "config.json").string()] =
      fmt::format("{:016x}", io::content_hash(io::MappedFile(base / "config.json").bytes()));
  facts[std::string(data_prefix) + "the weights in " + base.string()] =
      fmt::format("{:016x}", io::Checkpoint(base).content_hash());
}

Facts read_record(const fs::path& file) {
  const io::Json json = io::Json::read(file);
  Facts facts;
  for (const std::string& key : json.keys()) facts[key] = json.string(key);
  return facts;
}

// Whether a fact is one of a method that the other side does not have at all.
bool of_another_method(const std::string& fact, const Facts& other) {
  const std::size_t comma = fact.find(", task ");
  if (comma == fact.npos) return false;
  const std::string prefix = method_prefix(fact.substr(0, comma));
  const auto found = other.lower_bound(prefix);
  return found == other.end() || !found->first.starts_with(prefix);
}

void compare(const fs::path& file, const Facts& then, const Facts& now, bool with_data) {
  std::map<std::string, std::pair<std::string, std::string>> all;
  for (const auto& [key, value] : then) {
    if (!of_another_method(key, now)) all[key].first = value;
  }
  for (const auto& [key, value] : now) {
    if (!of_another_method(key, then)) all[key].second = value;
  }
  for (const auto& [key, values] : all) {
    const auto& [old_value, new_value] = values;
    const bool data = key.starts_with(data_prefix);
    if (old_value == new_value) continue;
    if (data) {  // a file that is on one side only is told of by the setting that names it
      if (!with_data || old_value.empty() || new_value.empty()) continue;
      user_error("{}: the {} has changed; continue with what the study started with, or choose another output_dir",
                 file.string(), key);
    }
    const auto shown = [](const std::string& value) { return value.empty() ? "not given" : "'" + value + "'"; };
    user_error("{}: {} was {} and is {} now; continue with the study's settings, or choose another output_dir",
               file.string(), key, shown(old_value), shown(new_value));
  }
}

// Every seed of a method at one setting.
void add_sequences(Study& study, const ContinualOptions& options, std::size_t method, double rate,
                   std::optional<double> share) {
  for (const std::int64_t seed : options.seeds) {
    Sequence sequence;
    sequence.method = method;
    sequence.learning_rate = rate;
    sequence.share = share;
    sequence.seed = seed;
    study.sequences.push_back(sequence);
  }
}

}  // namespace

void read_rows(const Study& study, const ContinualOptions& options, Sequence& sequence) {
  sequence.rows.clear();
  sequence.diverged.clear();
  for (std::size_t t = 0; t < options.tasks.size(); ++t) {
    const fs::path folder = task_folder(options, sequence, t);
    if (io::exists(folder / diverged_file)) {
      sequence.diverged = io::Json::read(folder / diverged_file).string("message");
      return;
    }
    if (!finished(folder)) return;
    sequence.rows.push_back(read_row(folder / row_file, study));
  }
}

fs::path sequence_folder(const ContinualOptions& options, const Sequence& sequence) {
  fs::path folder =
      fs::path(options.output_dir) / options.methods[sequence.method].name / rate_name(sequence.learning_rate);
  if (sequence.share) folder /= fmt::format("{}", *sequence.share);
  return folder / fmt::format("seed-{}", sequence.seed);
}

fs::path task_folder(const ContinualOptions& options, const Sequence& sequence, std::size_t task) {
  return sequence_folder(options, sequence) / fmt::format("{}-{}", task + 1, options.tasks[task].name);
}

fs::path own_answers_file(const ContinualOptions& options, const HeldSet& held) {
  return fs::path(options.output_dir) / fmt::format("base-answers-{}.jsonl", held.name);
}

fs::path base_row_file(const ContinualOptions& options) {
  return fs::path(options.output_dir) / (std::string("base-") + row_file);
}

bool finished(const fs::path& folder) { return io::exists(folder / row_file) && io::exists(folder / "summary.json"); }

fs::path model_folder(const fs::path& folder) {
  return io::exists(folder / adapter::config_file) ? folder / merged_folder : folder;
}

bool has_adapter(const fs::path& folder) { return io::exists(folder / adapter::tensors_file); }

bool has_weights(const fs::path& folder) {
  const fs::path model = model_folder(folder);
  return io::exists(model / "model.safetensors") || io::exists(model / "model.safetensors.index.json");
}

void drop_checkpoints(const fs::path& folder) {
  while (const auto checkpoint = train::latest_checkpoint(folder)) {
    train::remove_checkpoint(*checkpoint);
  }
}

void drop_weights(const fs::path& folder) {
  if (!io::is_folder(folder)) return;
  drop_checkpoints(folder);
  io::remove_all(folder / merged_folder);
  for (const fs::path& file : io::entries_of(folder)) {
    const std::string name = file.filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) io::remove_all(file);
  }
}

void drop_rows(const ContinualOptions& options, Sequence& sequence, std::size_t from) {
  while (sequence.rows.size() > from) {
    sequence.rows.pop_back();
    io::remove_all(task_folder(options, sequence, sequence.rows.size()) / row_file);
  }
}

bool has_study(const ContinualOptions& options) { return io::exists(fs::path(options.output_dir) / record_name); }

void claim_study(const ContinualOptions& options, bool resume) {
  const fs::path output = options.output_dir, record = output / record_name;
  if (!resume && (io::exists(record) || io::exists(output / "metrics.jsonl") || has_weights(output))) {
    user_error("{}: output_dir already holds {}", output.string(),
               io::exists(record) ? "a study; add --resume to continue it, or choose another folder"
                                  : "a run or a model; choose another folder");
  }
  if (resume && !io::exists(record)) user_error("{}: --resume finds no study there; start without it", output.string());
  io::create_folders(output);
  Facts facts = facts_of(options);
  add_data(facts, options);
  if (resume) {
    const Facts then = read_record(record);
    compare(record, then, facts, true);
    facts.insert(then.begin(), then.end());  // what was left out this time may come back
  }
  const nlohmann::json json = facts;
  io::write_file_atomic(record, json.dump(2) + "\n");
}

void check_study(const ContinualOptions& options) {
  if (!has_study(options)) user_error("{}: holds no study yet", options.output_dir);
  const fs::path record = fs::path(options.output_dir) / record_name;
  compare(record, read_record(record), facts_of(options), false);
}

Study read_study(const ContinualOptions& options) {
  Study study;
  for (const ContinualTask& task : options.tasks) study.tasks.push_back({task.name, task.metric});
  for (const HeldSet& held : options.held) study.held.push_back({held.name, held.metric, held.counted});
  for (std::size_t m = 0; m < options.methods.size(); ++m) {
    if (options.methods[m].name == options.baseline) study.baseline = m;
    study.methods.push_back(options.methods[m].name);
    for (const double rate : options.methods[m].learning_rates) {
      const auto& after = options.methods[m].after;
      if (!after) add_sequences(study, options, m, rate, std::nullopt);
      for (const double share : after ? after->shares : std::vector<double>()) {
        add_sequences(study, options, m, rate, share);
      }
    }
  }
  if (!io::exists(base_row_file(options))) return study;  // nothing comes before it
  study.base = read_row(base_row_file(options), study);
  for (Sequence& sequence : study.sequences) read_rows(study, options, sequence);
  // What is made of another sequence's models ends where that one does.
  for (Sequence& sequence : study.sequences) {
    const auto& after = options.methods[sequence.method].after;
    if (!after || study.complete(sequence) || !sequence.diverged.empty()) continue;
    const auto source = std::ranges::find_if(study.sequences, [&](const Sequence& other) {
      return other.method == after->method && other.learning_rate == sequence.learning_rate &&
             other.seed == sequence.seed;
    });
    sequence.diverged = source->diverged;
  }
  return study;
}

}  // namespace inlay::study
