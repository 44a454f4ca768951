#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/options.h"
#include "core/device.h"
#include "core/dtype.h"
#include "data/dataset.h"
#include "data/prompts.h"
#include "data/sampler.h"
#include "io/hub.h"
#include "model/activations.h"
#include "model/attention_text.h"
#include "ops/fp8.h"
#include "options/objective_options.h"
#include "options/optimizer.h"
#include "osft/options.h"
#include "parallel/mesh.h"

namespace YAML {
class Node;
}

// What a run is asked to do. Read once, validated once: nothing after this looks at YAML, and no option is accepted
// that nothing reads. Keys are axolotl's where axolotl has the key.
namespace inlay::options {

// How the learning rate goes on after the warm-up.
enum class Decay : std::uint8_t { constant, linear, cosine };

// When to evaluate, and when to save: by the keys with _steps or _per_epoch, after every epoch, whenever an evaluation
// was the best so far (saving alone), or at the end alone.
enum class When : std::uint8_t { steps, epoch, best, never };

// What the layers' products are made in.
enum class MatmulDtype : std::uint8_t { same_as_dtype, bf16, fp8 };

// What an evaluation is judged by.
enum class Metric : std::uint8_t { eval_loss, eval_perplexity, eval_accuracy };

struct TrainOptions {
  std::string source = "configuration";  // what messages call it: its file, where there is one
  std::string base_model;                // a folder, once it was found
  std::string base_name;                 // as the configuration has it
  std::string revision_of_model;         // of a model of the hub: a branch, tag or commit; empty: main
  std::string output_dir;
  std::vector<data::DatasetOptions> datasets, test_datasets;
  double val_set_size = 0;  // documents of datasets to evaluate on instead; below 1: a share of them
  std::string chat_template = "tokenizer_default";    // where a dataset names none
  bool train_on_inputs = false;                       // of every dataset
  std::vector<std::string> eot_tokens;                // where a dataset names none
  std::map<std::string, std::string> special_tokens;  // eos_token and such, and the tokens that are these
  std::vector<std::string> tokens;                    // that the tokenizer gets in addition
  data::BadRow on_bad_row = data::BadRow::raise;
  std::string dataset_prepared_path = "auto";  // auto, off, or a folder

  std::optional<Device> device;  // absent: auto
  std::optional<DType> dtype;    // absent: auto
  MatmulDtype matmul_dtype = MatmulDtype::same_as_dtype;
  struct Fp8 {
    std::optional<ops::Fp8Recipe> recipe;  // absent: auto
    DType gradients = DType::e4m3;
    ops::Fp8Sums sums = ops::Fp8Sums::fp32;
    std::int64_t skip_first = 0, skip_last = 0;  // layers
    std::vector<std::string> layers;             // numbers or patterns; empty: all
    bool head = false;
    bool operator==(const Fp8&) const = default;
  } fp8;

  std::int64_t sequence_len = 2048;
  std::int64_t micro_batch_size = 1;
  std::int64_t gradient_accumulation_steps = 1;
  bool sample_packing = true;
  data::Oversized excess_length_strategy = data::Oversized::truncate;
  bool shuffle = true;
  std::int64_t seed = 42;

  double num_epochs = 1;
  std::int64_t max_steps = 0;  // 0: by epochs
  double learning_rate = 0;
  Decay lr_scheduler = Decay::cosine;
  std::int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  double cosine_min_lr_ratio = 0;

  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8, weight_decay = 0;
  bool weight_decay_all = false;
  double max_grad_norm = 1.0;
  DType optimizer_state = DType::f32;  // of the moments
  OptimizerKind optimizer = OptimizerKind::adamw;
  struct Muon {
    double momentum = 0.95;
    MuonScale scale = MuonScale::adamw;
  } muon;

  std::int64_t logging_steps = 1;
  When eval_strategy = When::steps, save_strategy = When::steps;
  std::int64_t eval_steps = 0, save_steps = 0;      // 0: by the following
  double eval_share = 0, save_share = 0;            // of the run's steps; 0: by the following
  double evals_per_epoch = 0, saves_per_epoch = 0;  // 0: at the end alone
  bool eval_on_start = true;
  std::int64_t save_total_limit = 0;
  bool save_only_model = false;

  std::int64_t early_stopping_patience = 0;  // evaluations; 0: never
  double early_stopping_threshold = 0;
  std::optional<bool> load_best_model_at_end;   // absent: where it may stop early
  std::optional<Metric> metric_for_best_model;  // absent: eval_loss
  std::optional<bool> greater_is_better;        // absent: of accuracies

  std::vector<std::string> sample_prompts;
  std::optional<data::PromptKind> sample_as;  // absent: chat where there is a chat template
  std::int64_t sample_steps = 0;              // 0: with every evaluation
  std::int64_t sample_tokens = 64;

  std::vector<std::string> report_to = {"none"};
  std::string mlflow_tracking_uri, mlflow_experiment_name, mlflow_run_name;  // empty: by the environment

  std::vector<std::string> freeze = {"none"};  // patterns of tensors that do not train
  std::optional<double> router_aux_loss_coef;  // absent: as config.json says

  LossOptions loss;
  PreferenceOptions preference;
  DistillationOptions distillation;
  SdftOptions sdft;

  std::string activation_policy = "auto";
  std::optional<std::int64_t> mlp_tile;  // absent: auto
  bool deterministic = false;
  model::AttentionText attention;

  struct Memory {
    std::optional<double> device, host;  // GiB; absent: auto
    std::string disk = "off";            // or a folder
    std::optional<std::int64_t> host_layers;
  } memory;

  // Of a run with several processes.
  struct Parallel {
    std::optional<parallel::Zero> zero;  // absent: auto
    parallel::ShardGroup shard = parallel::ShardGroup::all;
    double timeout = 600;  // seconds
  } parallel;

  osft::OsftOptions osft;
  adapter::AdapterOptions adapter;

  bool loads_best() const { return load_best_model_at_end.value_or(early_stopping_patience > 0); }
  bool saves_best() const { return loads_best() || save_strategy == When::best; }
  // Whether evaluations are compared at all.
  bool tracks_best() const { return saves_best() || early_stopping_patience > 0 || metric_for_best_model; }
  Metric best_metric() const { return metric_for_best_model.value_or(Metric::eval_loss); }
  bool wants_greater() const { return greater_is_better.value_or(best_metric() == Metric::eval_accuracy); }
  bool evaluates() const { return val_set_size > 0 || !test_datasets.empty(); }
  bool reports_to(std::string_view board) const;
  // Whether there are evaluations, and checkpoints, before the end.
  bool evaluates_along() const {
    return eval_strategy == When::epoch || eval_steps > 0 || eval_share > 0 || evals_per_epoch > 0;
  }
  // Whether the model in training writes the answers of each step, and how it does, or the base model before the first.
  bool on_policy() const { return sdft.on_policy || distillation.on_policy; }
  AnswerWriting answer_writing() const {
    if (distillation.on_policy) {
      return {.key = "kd_on_policy",
              .predictions = true,
              .max_new_tokens = distillation.max_new_tokens,
              .temperature = distillation.sampling_temperature};
    }
    return {.key = "sdft",
            .shown = true,
            .predictions = sdft.predictions(),
            .max_new_tokens = sdft.max_new_tokens,
            .temperature = sdft.temperature,
            .top_p = sdft.top_p};
  }
  bool saves_along() const {
    return save_strategy == When::epoch || save_strategy == When::best || save_steps > 0 || save_share > 0 ||
           saves_per_epoch > 0;
  }

  // For people: which keys of other programs were read, and how.
  std::vector<std::string> notes;

  // Whether the base model is searched for directions before anything trains.
  bool finds_directions() const { return osft.enabled || adapter.keeps_to_free(); }
};

std::string_view name_of(Metric metric);  // "eval_loss"

// One key of the configuration, for the reference, the schema and the messages.
// Keys of a nested map are written with dots: osft.basis.
struct OptionKey {
  std::string name, type, default_value, meaning;
  std::string schema;     // of its value, as JSON Schema
  bool required = false;  // of a key in a nested map: where the map is given
};
std::vector<OptionKey> option_keys();
std::vector<OptionKey> dataset_keys();  // of an entry of datasets

// Keys given on the command line override the file's. source names the file in messages. All that is wrong is one
// UserError. A key without a value is as good as absent; what keys of other programs mean is in options/foreign.h.
using Overrides = std::vector<std::pair<std::string, std::string>>;
// Relative paths of a file are relative to its folder, those of the command line to the working directory.
// Names of the hub become folders (io/hub.h).
//
// What of a run has to be there when its options are read: models; chat templates as well; and data. What is not is a
// problem like those of keys, in the same message; data that a plan can do without is noted.
enum class Needed : std::uint8_t { models, all_but_data, all };
TrainOptions load_options(const std::filesystem::path& file, const Overrides& overrides, Needed needed,
                          const io::HubAccess& hub = {});
TrainOptions parse_options(const std::string& yaml, const std::string& source, const Overrides& overrides);
// The same from YAML that was read already; its lines are those of the file that it came from.
TrainOptions parse_options(const YAML::Node& root, const std::string& source, const Overrides& overrides);
// Of a run by itself, as load_options reads it: what only a study knows (inlay continual) is refused.
TrainOptions parse_run_options(const std::string& yaml, const std::string& source, const Overrides& overrides,
                               Needed needed);
// The same options with paths that hold in any working directory.
TrainOptions with_absolute_paths(TrainOptions options);

// Every key with the value in force, as YAML that load_options reads back; and one of them alone.
std::string to_yaml(const TrainOptions& options);
std::string value_text(const TrainOptions& options, std::string_view key);

}  // namespace inlay::options
