#include "options/train_options.h"

#include <algorithm>
#include <limits>
#include <span>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/text.h"
#include "options/adapter_fields.h"
#include "options/all_fields.h"
#include "options/dataset_fields.h"
#include "options/objective_fields.h"
#include "options/watching_fields.h"

namespace inlay::options {

namespace option {

bool serves_free_adapters(const std::string& key) {
  return key.starts_with("osft.calibration.") || key == "osft.basis_on" || key == "osft.cache";
}

const std::vector<Field>& osft_fields() {
#define INLAY_MEMBER(path) \
  [](auto& o) -> auto& { return o.osft.path; }  // NOLINT(bugprone-macro-parentheses)
  static const std::vector<Field> table = {
      choice("osft.basis", INLAY_MEMBER(basis),
             {{"activations", osft::BasisKind::activations}, {"weights", osft::BasisKind::weights}},
             "how the frozen directions are found: from the base model's activations, or from the weights alone (the "
             "published method)"),
      positive_share("osft.unfreeze_rank_ratio", INLAY_MEMBER(unfreeze_rank_ratio),
                     "share of each target's directions that train, rounded up to aligned ranks; required"),
      words("osft.targets", INLAY_MEMBER(targets),
            {"auto", "q", "k", "v", "o", "gate", "up", "down", "router", "head", "attention", "mlp"},
            "weights that train in a subspace; auto: all weights of the layers, and the head with basis activations"),
      shares("osft.ratios", INLAY_MEMBER(ratios),
             "other ratios for tensors whose checkpoint name matches a pattern (* stands for anything)"),
      choice("osft.route", INLAY_MEMBER(route),
             {{"auto", {}},
              {"direct", weights::Route::direct},
              {"dense", weights::Route::dense},
              {"factored", weights::Route::factored}},
             "basis weights: how gradients of the factors are computed; auto: with the fewest operations"),
      choice("osft.ranks", INLAY_MEMBER(ranks),
             {{"uniform", osft::Ranks::uniform}, {"adaptive", osft::Ranks::adaptive}},
             "the same ratio in all layers, or more frozen where a layer changes its input less"),
      number("osft.adaptive_floor", INLAY_MEMBER(adaptive_floor), 0, 1,
             "the smallest share that adaptive ranks freeze, if unfreeze_rank_ratio leaves that much"),
      texts("osft.calibration.data", INLAY_MEMBER(calibration.data),
            "sample, earlier, a .txt file, a file of rows, or a list of them",
            "text on which activations are observed; sample: written by the base model itself; earlier: training data "
            "of the earlier tasks (in inlay continual)"),
      integer("osft.calibration.samples", INLAY_MEMBER(calibration.samples), 1,
              "sequences to observe from each of these"),
      integer("osft.calibration.length", INLAY_MEMBER(calibration.length), 2, "tokens per sequence"),
      number("osft.calibration.temperature", INLAY_MEMBER(calibration.temperature), 0.01, 10, "sampling temperature"),
      words("osft.freeze", INLAY_MEMBER(freeze), {"auto", "none", "embeddings", "head", "norms", "biases"},
            "what does not train at all, besides the frozen directions; auto: norms and biases with basis activations"),
      choice("osft.tokens", INLAY_MEMBER(tokens),
             {{"unseen", osft::TrainedTokens::unseen}, {"all", osft::TrainedTokens::all}},
             "basis activations: tokens whose embeddings train, if embeddings do; unseen: those not in the calibration "
             "text"),
      choice("osft.basis_on", INLAY_MEMBER(basis_on),
             {{"device", weights::BasisPlace::device}, {"host", weights::BasisPlace::host}},
             "where bases live; on the host they are copied to the device for every use"),
      text("osft.cache", INLAY_MEMBER(cache), "auto, off or a folder", "where bases are kept for the next run"),
  };
#undef INLAY_MEMBER
  return table;
}

const std::vector<Field>& fields() {
  using O = TrainOptions;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  static const std::vector<Field> table = {
      text("base_model", &O::base_model, "folder or name",
           "model to start from: a Hugging Face model folder, or its name on the hub (org/name), found in the cache of "
           "hf and transformers, or downloaded to it with --download"),
      optional_text("revision_of_model", &O::revision_of_model, "branch, tag or commit",
                    "which version of a model on the hub"),
      text("output_dir", &O::output_dir, "folder",
           "where checkpoints, metrics and the result go; must not hold a run yet"),
      datasets("datasets", &O::datasets, "what to learn: conversations, instructions, texts or tokens (docs/data.md)"),
      datasets("test_datasets", &O::test_datasets, "the same, to evaluate on"),
      number("val_set_size", &O::val_set_size, 0, infinity,
             "documents held out of datasets for evaluation, chosen by seed; below 1: a share of them"),
      text("chat_template", &O::chat_template, "tokenizer_default, a name or a .jinja file",
           "the template that renders conversations, for datasets that name none: the model's own, a well-known one by "
           "its name (chatml, llama3, qwen3, ...; docs/data.md), or a file"),
      boolean("train_on_inputs", &O::train_on_inputs, "also learn prompts and all roles, in every dataset"),
      optional_texts("eot_tokens", &O::eot_tokens, "list of tokens",
                     "tokens that end a turn, for datasets that name none; by default eos_token, or the special token "
                     "that follows a turn"),
      names("special_tokens", &O::special_tokens,
            "bos_token, eos_token, ... and the tokens that take these roles; missing ones are added"),
      optional_texts("tokens", &O::tokens, "list of tokens",
                     "tokens to add to the tokenizer; if the model has no rows for them, its embedding and head grow: "
                     "new rows begin as the mean of the others"),
      choice("on_bad_row", &O::on_bad_row, {{"raise", data::BadRow::raise}, {"skip", data::BadRow::skip}},
             "what happens to rows that cannot be used; skipped ones are counted in the log"),
      text("dataset_prepared_path", &O::dataset_prepared_path, "auto, off or a folder",
           "where tokenized data is kept for the next run; auto: in the cache folder"),
      choice("device", &O::device, {{"auto", {}}, {"cpu", Device::cpu}, {"cuda", Device::cuda}},
             "where to train; auto: on a GPU if there is one"),
      choice("dtype", &O::dtype, {{"auto", {}}, {"fp32", DType::f32}, {"bf16", DType::bf16}},
             "compute dtype; bf16 keeps fp32 master weights; auto: bf16 if the device multiplies it natively"),
      choice("matmul_dtype", &O::matmul_dtype,
             {{"auto", MatmulDtype::same_as_dtype}, {"bf16", MatmulDtype::bf16}, {"fp8", MatmulDtype::fp8}},
             "type of the layers' matrix products; auto: dtype; fp8: 8-bit operands, sums in fp32, everything else "
             "unchanged (docs/fp8.md)"),
      choice(
          "fp8.recipe", [](auto& o) -> auto& { return o.fp8.recipe; },
          {{"auto", {}},
           {"block", ops::Fp8Recipe::block},
           {"row", ops::Fp8Recipe::row},
           {"tensor", ops::Fp8Recipe::tensor}},
          "what has its own scale; auto: blocks of 128 on Hopper GPUs and on the CPU, rows elsewhere"),
      choice(
          "fp8.gradients", [](auto& o) -> auto& { return o.fp8.gradients; },
          {{"e4m3", DType::e4m3}, {"e5m2", DType::e5m2}},
          "format of gradients in products: e5m2 has more range and less precision"),
      choice(
          "fp8.sums", [](auto& o) -> auto& { return o.fp8.sums; },
          {{"fp32", ops::Fp8Sums::fp32}, {"fast", ops::Fp8Sums::fast}},
          "fast: outputs and gradients of inputs are summed in the tensor cores, which keep about 14 bits (recipes row "
          "and tensor)"),
      integer(
          "fp8.skip_first", [](auto& o) -> auto& { return o.fp8.skip_first; }, 0,
          "how many of the first layers keep multiplying in dtype"),
      integer(
          "fp8.skip_last", [](auto& o) -> auto& { return o.fp8.skip_last; }, 0, "how many of the last layers do"),
      optional_texts(
          "fp8.layers", [](auto& o) -> auto& { return o.fp8.layers; }, "list of numbers and patterns",
          "which of the others multiply in fp8: layer numbers, from 0, or patterns of tensor names, such as "
          "\"*.mlp.*\"; empty: all"),
      boolean(
          "fp8.head", [](auto& o) -> auto& { return o.fp8.head; }, "the head multiplies in fp8 as well"),
      integer("sequence_len", &O::sequence_len, 2, "longest document, and tokens per packed row"),
      integer("micro_batch_size", &O::micro_batch_size, 1,
              "rows per forward pass; packed: up to micro_batch_size·sequence_len tokens; unpacked: documents"),
      integer("gradient_accumulation_steps", &O::gradient_accumulation_steps, 1, "micro-batches per optimizer step"),
      boolean("sample_packing", &O::sample_packing, "fill micro-batches with whole documents by tokens, not by count"),
      choice("excess_length_strategy", &O::excess_length_strategy,
             {{"truncate", data::Oversized::truncate},
              {"split", data::Oversized::split},
              {"drop", data::Oversized::drop},
              {"raise", data::Oversized::raise}},
             "what happens to documents longer than sequence_len; counted in the log"),
      boolean("shuffle", &O::shuffle, "shuffle the documents again every epoch"),
      integer("seed", &O::seed, 0, "seed of all random numbers"),
      number("num_epochs", &O::num_epochs, 0, 1e6, "passes over the data, if max_steps is 0"),
      integer("max_steps", &O::max_steps, 0, "optimizer steps; 0: set by num_epochs"),
      number("learning_rate", &O::learning_rate, 0, infinity, "peak learning rate; required"),
      choice("lr_scheduler", &O::lr_scheduler,
             {{"constant", Decay::constant},
              {"constant_with_warmup", Decay::constant},
              {"linear", Decay::linear},
              {"cosine", Decay::cosine}},
             "shape after the warm-up"),
      steps_or_share("warmup_steps", &O::warmup_steps, &O::warmup_ratio, "steps of linear warm-up"),
      number("warmup_ratio", &O::warmup_ratio, 0, 1, "the same, as a share of all steps; set only one of the two"),
      number("cosine_min_lr_ratio", &O::cosine_min_lr_ratio, 0, 1, "where the cosine ends, as a share of the peak"),
      number("adam_beta1", &O::adam_beta1, 0, 0.999999, "AdamW: decay of the first moment"),
      number("adam_beta2", &O::adam_beta2, 0, 0.999999999, "AdamW: decay of the second moment"),
      number("adam_epsilon", &O::adam_epsilon, 0, 1, "AdamW: added to the root of the second moment"),
      number("weight_decay", &O::weight_decay, 0, infinity, "AdamW: decoupled weight decay of matrices"),
      boolean("weight_decay_all", &O::weight_decay_all, "also decay norms and biases"),
      number("max_grad_norm", &O::max_grad_norm, 0, infinity, "clip the global gradient norm; 0: never"),
      choice("optimizer", &O::optimizer,
             {{"adamw", OptimizerKind::adamw},
              {"muon", OptimizerKind::muon},
              {"schedule_free_adamw", OptimizerKind::schedule_free}},
             "how weights change; muon: matrices of the layers, everything else by AdamW; schedule_free_adamw: the "
             "result is an average over the steps, at a constant learning rate"),
      number(
          "muon.momentum", [](auto& o) -> auto& { return o.muon.momentum; }, 0, 0.999999,
          "Muon: decay of the momentum"),
      choice(
          "muon.scale", [](auto& o) -> auto& { return o.muon.scale; },
          {{"adamw", MuonScale::adamw}, {"shape", MuonScale::shape}},
          "Muon: adamw makes changes as large as AdamW's, so that its learning rates carry over; shape: as published, "
          "for learning rates about a hundred times higher"),
      choice("optimizer_state", &O::optimizer_state, {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"8bit", DType::u8}},
             "type of the optimizer's moments; 8bit: those of AdamW for large matrices, except embeddings"),
      integer("logging_steps", &O::logging_steps, 1, "steps between lines of the log"),
      choice("eval_strategy", &O::eval_strategy,
             {{"steps", When::steps}, {"epoch", When::epoch}, {"no", When::never}, {"false", When::never}},
             "when to evaluate; steps: as eval_steps or evals_per_epoch say; epoch: after every epoch; no: at the end "
             "only"),
      steps_or_share("eval_steps", &O::eval_steps, &O::eval_share,
                     "steps between evaluations on test_datasets; 0: at the end only"),
      number("evals_per_epoch", &O::evals_per_epoch, 0, 1e6, "the same, as a number of evaluations per epoch"),
      boolean("eval_on_start", &O::eval_on_start,
              "also evaluate before the first step, if there is something to evaluate on"),
      choice("save_strategy", &O::save_strategy,
             {{"steps", When::steps},
              {"epoch", When::epoch},
              {"best", When::best},
              {"no", When::never},
              {"false", When::never}},
             "when to write checkpoints; steps: as save_steps or saves_per_epoch say; epoch: after every epoch; best: "
             "whenever an evaluation is the best so far, by metric_for_best_model; no: never"),
      steps_or_share("save_steps", &O::save_steps, &O::save_share,
                     "steps between checkpoints; 0: only the final model is saved"),
      number("saves_per_epoch", &O::saves_per_epoch, 0, 1e6, "the same, as a number of checkpoints per epoch"),
      integer("save_total_limit", &O::save_total_limit, 0, "checkpoints to keep; 0: all"),
      boolean("save_only_model", &O::save_only_model,
              "checkpoints hold only the model: a seventh of the bytes or less, but a run cannot continue from them"),
      texts("freeze", &O::freeze, "none, or a list of patterns",
            "tensors that do not train, by their names in the checkpoint (* stands for anything): "
            "\"model.layers.*.mlp.experts.*\""),
      or_auto("router_aux_loss_coef", &O::router_aux_loss_coef, 0,
              "factor of the loss that keeps the experts of a mixture evenly used; auto: as config.json says"),
      text("activation_policy", &O::activation_policy, "policy",
           "auto, keep, recompute_norms, recompute_mlp, recompute, offload_attention, offload, offload_half, "
           "offload_mlp, offload_both, either of these with _half, names to keep, or different ones for the first "
           "layers and the rest (12*recompute+keep); all give the same bits (docs/memory.md)"),
      or_auto("mlp_tile", &O::mlp_tile, 0, "rows the MLP works on at once; 0: all; auto: the most that fits"),
      or_auto(
          "memory.device", [](auto& o) -> auto& { return o.memory.device; }, 0.001,
          "GiB of device memory to plan for; auto: what is free"),
      or_auto(
          "memory.host", [](auto& o) -> auto& { return o.memory.host; }, 0,
          "GiB of host memory for what does not stay on a GPU; auto: what is free; not with device: cpu"),
      text(
          "memory.disk", [](auto& o) -> auto& { return o.memory.disk; }, "off or a folder",
          "folder on a local disk for layer inputs that do not fit into host memory"),
      or_auto(
          "memory.host_layers", [](auto& o) -> auto& { return o.memory.host_layers; }, 0,
          "layers whose weights, gradients and optimizer state live on the host; auto: as many as necessary"),
      choice(
          "parallel.zero", [](auto& o) -> auto& { return o.parallel.zero; },
          {{"auto", std::nullopt},
           {"0", parallel::Zero::none},
           {"1", parallel::Zero::state},
           {"2", parallel::Zero::gradients},
           {"3", parallel::Zero::weights}},
          "what the processes of a run divide among themselves: nothing, the optimizer's state, also gradients, also "
          "weights; auto: the least that fits (docs/many_gpus.md)"),
      choice(
          "parallel.shard", [](auto& o) -> auto& { return o.parallel.shard; },
          {{"all", parallel::ShardGroup::all}, {"node", parallel::ShardGroup::node}},
          "which processes divide it: all of them, or those of each node, so that every node has everything"),
      number(
          "parallel.timeout", [](auto& o) -> auto& { return o.parallel.timeout; }, 1, infinity,
          "seconds after which a process that is not heard from, or that the others wait for, ends the run "
          "(docs/many_gpus.md)"),
      optional_text(
          "attention.mask", [](auto& o) -> auto& { return o.attention.mask; }, "mask",
          "which tokens see which, instead of causal: \"causal or prefix\" (docs/attention.md)"),
      optional_text(
          "attention.score", [](auto& o) -> auto& { return o.attention.score; }, "score",
          "changes scores before the softmax: \"softcap(50)\""),
      numbers(
          "attention.head_bias", [](auto& o) -> auto& { return o.attention.head_bias; },
          "one number per head, if attention.mask or attention.score uses head_bias"),
      boolean("deterministic", &O::deterministic,
              "sum in a fixed order in attention's backward pass on a GPU, and between GPUs around a ring (NCCL_ALGO); "
              "slower "
              "(docs/numbers.md); always so on a CPU"),
  };
  static const std::vector<Field> all = [] {
    std::vector<Field> joined = table;
    joined.insert(joined.end(), objective_fields().begin(), objective_fields().end());
    joined.insert(joined.end(), watching_fields().begin(), watching_fields().end());
    joined.insert(joined.end(), adapter_fields().begin(), adapter_fields().end());
    joined.insert(joined.end(), osft_fields().begin(), osft_fields().end());
    return joined;
  }();
  return all;
}

bool is_section(const std::string& name) {
  return std::ranges::any_of(fields(), [&](const Field& f) { return f.name.starts_with(name + "."); });
}

const Field* find_field(const std::string& name) {
  for (const Field& field : fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

}  // namespace option

using namespace option;

namespace {

// What reading requires; osft's only where the map is given.
constexpr std::string_view required_keys[] = {"base_model", "output_dir", "datasets", "learning_rate",
                                              "osft.unfreeze_rank_ratio"};

std::vector<OptionKey> keys_of(const std::vector<Field>& table, const TrainOptions& defaults,
                               std::span<const std::string_view> required) {
  std::vector<OptionKey> keys;
  for (const Field& field : table) {
    YAML::Emitter out;
    field.emit(defaults, out);
    const bool is_required = std::ranges::find(required, field.name) != required.end();
    keys.push_back({field.name, field.type, out.c_str(), field.meaning, field.schema.dump(), is_required});
  }
  return keys;
}

}  // namespace

std::vector<OptionKey> option_keys() {
  static const TrainOptions defaults;
  return keys_of(fields(), defaults, required_keys);
}

std::vector<OptionKey> dataset_keys() {
  TrainOptions defaults;
  defaults.datasets.emplace_back();
  constexpr std::string_view required[] = {"path"};
  return keys_of(dataset_fields(), defaults, required);
}

std::string value_text(const TrainOptions& options, std::string_view key) {
  const Field* field = find_field(std::string(key));
  INLAY_ASSERT(field != nullptr, "{} is not a key", key);
  YAML::Emitter out;
  field->emit(options, out);
  return out.c_str();
}

std::string to_yaml(const TrainOptions& options) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  std::vector<std::string> open;  // maps begun
  for (const Field& field : fields()) {
    const bool serves = options.adapter.keeps_to_free() && serves_free_adapters(field.name);
    if (field.name.starts_with("osft.") && !options.osft.enabled && !serves) continue;
    if (!options.adapter.enabled() && is_adapter_key(field.name)) continue;
    if (!serves_objective(options, field.name)) continue;
    std::vector<std::string> path = split(field.name, '.');
    const std::string leaf = path.back();
    path.pop_back();
    const auto same = static_cast<std::size_t>(std::mismatch(open.begin(), open.end(), path.begin(), path.end()).first -
                                               open.begin());
    for (; open.size() > same; open.pop_back()) out << YAML::EndMap;
    for (; open.size() < path.size(); open.push_back(path[open.size()])) {
      out << YAML::Key << path[open.size()] << YAML::Value << YAML::BeginMap;
    }
    out << YAML::Key << leaf << YAML::Value;
    field.emit(options, out);
  }
  for (; !open.empty(); open.pop_back()) out << YAML::EndMap;
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace inlay::options
