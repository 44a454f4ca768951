#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text.h"
#include "options/import.h"
#include "options/import_writer.h"

namespace inlay::options {

using namespace importing;

namespace {

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
    {"block-size", nullptr, "pretraining in blocks is not supported; excess_length_strategy: split is closest"},
};
constexpr const char* mini_unneeded[] = {"use-liger-kernels",
                                         "osft-upcast-dtype",
                                         "osft-output-dtype",
                                         "osft-memory-efficient-init",
                                         "save-final-checkpoint",
                                         "on-demand-checkpointing",
                                         "trust-remote-code",
                                         "log-level",
                                         "nnodes",
                                         "node-rank",
                                         "rdzv-id",
                                         "rdzv-endpoint"};

// "--key value", "--key=value" and "--flag"; underscores as dashes.
std::vector<std::pair<std::string, std::string>> pairs_of(std::span<const std::string> arguments) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) {
      user_error(
          "'{}': expected an argument of mini_trainer that begins with --; options of inlay import come before the "
          "two dashes",
          arguments[i]);
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

// How many words are the launcher's: environment, torchrun with its own options, python, and the script or module.
std::size_t words_of_launcher(const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with("--")) return 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].ends_with(".py")) return i + 1;
    if ((words[i] == "-m" || words[i] == "--module") && i + 1 < words.size()) return i + 2;
  }
  std::size_t words_before = 0;
  while (words_before < words.size() && !words[words_before].starts_with("--")) ++words_before;
  return words_before;
}

// The launcher says how many processes there are, which the configuration does not.
void take_processes(const std::string& given, const std::string& count, Imported& result) {
  const bool number = !count.empty() && count.find_first_not_of("0123456789") == count.npos;
  result.translated.push_back(
      fmt::format("{}: the number of processes is given when a run is started: inlay train run.yaml --processes {}, or "
                  "with mpirun (docs/many_gpus.md)",
                  given, number ? count : "auto"));
}

bool is_process_count(const std::string& name) { return name == "nproc-per-node" || name == "num-processes"; }

void take_launcher(std::span<const std::string> words, Imported& result) {
  if (words.empty()) return;
  result.unneeded.push_back(join(words, " "));
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::ranges::replace(name, '_', '-');
    if (!name.starts_with("--") || !is_process_count(name.substr(2))) continue;
    const bool attached = name.size() < words[i].size();
    const std::string count = attached ? words[i].substr(name.size() + 1) : i + 1 < words.size() ? words[i + 1] : "";
    take_processes(fmt::format("{} {}", name, count), count, result);
  }
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
  if (is_process_count(name)) return take_processes(given, value, result);
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
    is("sequence_len", value, "a micro-batch of one document may have this many tokens");
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

Imported import_mini_trainer(const std::vector<std::string>& arguments,
                             const std::optional<std::filesystem::path>& to) {
  Imported result;
  Writer keys;
  const std::span<const std::string> words(arguments);
  const std::size_t launcher = words_of_launcher(arguments);
  take_launcher(words.first(launcher), result);
  for (const auto& [name, value] : pairs_of(words.subspan(launcher))) take_mini(name, value, keys, result);
  if (!keys.has("adam_beta2")) {
    keys.set("adam_beta2", YAML::Node("0.95"));
    result.translated.emplace_back("adam_beta2: 0.95 is mini_trainer's default");
  }
  move_paths(keys, {"."}, to, result);
  finish(keys, result);
  return result;
}

}  // namespace inlay::options
