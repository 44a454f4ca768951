#include "train/session.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "backend/cpu/gemm.h"
#include "backend/cuda/context.h"
#include "core/cache.h"
#include "core/text.h"
#include "data/dataset.h"
#include "model/families/family.h"
#include "train/freeze.h"
#include "train/interrupt.h"

namespace inlay::train {

Device resolve_device(const std::string& text) {
  if (text == "cpu") return Device::cpu;
  if (text == "cuda") return Device::cuda;
  if (text == "auto") return backend::cuda::available() ? Device::cuda : Device::cpu;
  user_error("device: expected auto, cpu or cuda, got '{}'", text);
}

DType resolve_dtype(const std::string& text, Device device) {
  if (text == "auto") {
    return device == Device::cuda || backend::cpu::amx_usable() ? DType::bf16 : DType::f32;
  }
  const auto dtype = parse_floating_dtype(text);
  if (!dtype || *dtype == DType::f16) user_error("dtype: expected auto, fp32 or bf16, got '{}'", text);
  return *dtype;
}

namespace {

// What the options say about all datasets, where the dataset itself says nothing.
data::DatasetOptions completed(data::DatasetOptions dataset, const TrainOptions& options) {
  data::FormatOptions& format = dataset.format;
  if (format.chat_template == "tokenizer_default") format.chat_template = options.chat_template;
  if (format.eot_tokens.empty()) format.eot_tokens = options.eot_tokens;
  format.train_on_inputs = format.train_on_inputs || options.train_on_inputs;
  return dataset;
}

std::filesystem::path prepared_folder(const std::string& option) {
  if (option == "off") return {};
  const std::filesystem::path cache = cache_folder();
  if (option == "auto") return cache.empty() ? cache : cache / "data";
  return option;
}

void describe_rows(const std::string& file, const data::RowCounts& counts, Console& console) {
  if (counts.skipped > 0) {
    console.line(fmt::format("data: {}: {} of {} rows are bad and were skipped", file, format_count(counts.skipped),
                             format_count(counts.rows)));
  }
  if (counts.unlabelled > 0) {
    console.line(fmt::format("data: {}: {} of {} rows hold nothing to learn and were left out", file,
                             format_count(counts.unlabelled), format_count(counts.rows)));
  }
}

}  // namespace

data::Documents read_datasets(const std::vector<data::DatasetOptions>& datasets, const TrainOptions& options,
                              std::int64_t vocab, Console& console) {
  data::Documents documents;
  for (const data::DatasetOptions& dataset : datasets) {
    data::ReadContext context;
    context.model = options.base_model;
    context.vocab = vocab;
    context.bad_row = options.on_bad_row == "skip" ? data::BadRow::skip : data::BadRow::raise;
    context.prepared = prepared_folder(options.dataset_prepared_path);
    context.progress = [&](std::uint64_t done, std::uint64_t total) {
      stop_where_asked("reading " + dataset.path);
      console.progress("reading " + dataset.path, done, total);
    };
    context.notice = [&](const std::string& message) { console.line("data: skipped: " + message); };
    const auto corpus = data::read_dataset(completed(dataset, options), context);
    describe_rows(dataset.path, corpus->counts(), console);
    documents.add(corpus, dataset.weight, static_cast<std::uint64_t>(options.seed));
  }
  return documents;
}

RunData read_run_data(const TrainOptions& options, std::int64_t vocab, Console& console) {
  RunData data{.train = read_datasets(options.datasets, options, vocab, console),
               .test = read_datasets(options.test_datasets, options, vocab, console)};
  if (options.val_set_size > 0) {
    data.test = data.train.take_out(options.val_set_size, static_cast<std::uint64_t>(options.seed));
  }
  return data;
}

std::vector<Document> read_documents(const std::string& file, const TrainOptions& options, std::int64_t vocab,
                                     Console& console) {
  TrainOptions here = options;
  here.dataset_prepared_path = "off";
  return read_datasets({{.path = file, .format = {}}}, here, vocab, console).copies();
}

std::vector<Document> read_documents(const std::string& file, const std::string& model, std::int64_t vocab,
                                     Console& console) {
  TrainOptions options;
  options.base_model = model;
  return read_documents(file, options, vocab, console);
}

data::BatchOptions batch_options(const TrainOptions& options) {
  return {.sequence_len = options.sequence_len,
          .micro_batch_size = options.micro_batch_size,
          .sample_packing = options.sample_packing,
          .seed = static_cast<std::uint64_t>(options.seed),
          .shuffle = options.shuffle,
          .oversized = *data::parse_oversized(options.excess_length_strategy)};
}

BatchBounds bounds_of(const data::BatchSampler& sampler) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t epoch_batch = 0; epoch_batch < sampler.batches_per_epoch(0); ++epoch_batch) {
    for (const std::int64_t document : sampler.documents_of(0, epoch_batch))
      lengths.push_back(sampler.length_of(document));
  }
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  const std::int64_t rows = sampler.options().micro_batch_size;
  BatchBounds bounds{.tokens = 0, .document = lengths.front()};
  if (sampler.options().sample_packing) {
    bounds.tokens = std::min(sampler.max_tokens(), sampler.tokens_per_epoch());
  } else {
    const auto count = std::min<std::size_t>(static_cast<std::size_t>(rows), lengths.size());
    bounds.tokens =
        std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(count), std::int64_t{0});
  }
  return bounds;
}

BatchBounds bounds_of(const TrainOptions& options) {
  const std::int64_t tokens = options.micro_batch_size * options.sequence_len;
  return {.tokens = tokens, .document = options.sequence_len};
}

StepShape step_shape(const TrainOptions& options, const BatchBounds& bounds) {
  return {.tokens = bounds.tokens,
          .micro_batches = options.gradient_accumulation_steps,
          .mlp_tile = options.mlp_tile.value_or(0)};
}

model::ModelConfig config_of(const TrainOptions& options) {
  model::ModelConfig config = model::load_config(options.base_model);
  if (!options.router_aux_loss_coef) return config;
  if (config.expert_layers() == 0) {
    user_error("router_aux_loss_coef: {} has no experts; leave the key out", options.base_model);
  }
  config.experts.balance = *options.router_aux_loss_coef;
  return config;
}

std::set<std::string> frozen_of(const TrainOptions& options, const model::ModelConfig& config) {
  if (options.freeze == std::vector<std::string>{"none"}) return {};
  return frozen_by_name(options.freeze, config);
}

void plan_frozen(const TrainOptions& options, const model::ModelConfig& config, EngineOptions& engine) {
  const std::set<std::string> frozen = frozen_of(options, config);
  if (frozen.empty()) return;
  auto layout = std::make_shared<OsftLayout>();
  layout->frozen.assign(frozen.begin(), frozen.end());
  engine.osft = std::move(layout);
}

void plan_osft(const TrainOptions& options, const model::ModelConfig& config, const BatchBounds& bounds,
               EngineOptions& engine) {
  if (!options.osft.enabled) return plan_frozen(options, config, engine);
  engine.osft = std::make_shared<OsftLayout>(nominal_layout(
      OsftTargets(options.osft, config, frozen_of(options, config)), config, step_shape(options, bounds)));
}

EngineOptions engine_options(const TrainOptions& o, const BatchBounds& bounds) {
  const Device device = resolve_device(o.device);
  return {.device = device,
          .compute = resolve_dtype(o.dtype, device),
          .loss = {.label_smoothing = o.loss.label_smoothing, .z_loss = o.loss.z_loss},
          .deterministic = o.deterministic,
          .attention = o.attention,
          .optimizer = {.beta1 = o.adam_beta1,
                        .beta2 = o.adam_beta2,
                        .eps = o.adam_epsilon,
                        .weight_decay = o.weight_decay,
                        .decay_vectors = o.weight_decay_all,
                        .max_grad_norm = o.max_grad_norm,
                        .moments = o.optimizer_state == "bf16" ? DType::bf16 : DType::f32},
          .max_tokens = bounds.tokens,
          .max_document = bounds.document};
}

MemoryBudget budget_of(const TrainOptions& options, Device device) {
  const auto bytes = [](double gib) { return static_cast<std::size_t>(gib * 0x1p30); };
  MemoryBudget budget;
  // Without the device there is nothing to fit into: the plan then shows what keeping everything takes.
  const bool blind = device == Device::cuda && !backend::cuda::available();
  budget.device = options.memory.device ? bytes(*options.memory.device)
                  : blind               ? Arena::unlimited
                                        : memory_budget(device);
  budget.host = options.memory.host ? bytes(*options.memory.host) : host_memory_budget();
  if (options.memory.disk != "off") budget.disk = options.memory.disk;
  return budget;
}

MemoryDemands demands_of(const TrainOptions& options) {
  MemoryDemands demands;
  if (options.activation_policy != "auto") demands.policy = model::ActivationPolicy::parse(options.activation_policy);
  demands.mlp_tile = options.mlp_tile;
  demands.loss_chunk = options.loss.chunk;
  demands.host_layers = options.memory.host_layers;
  return demands;
}

MemoryChoice resolve_memory(const TrainOptions& options, const model::ModelConfig& config, EngineOptions& engine) {
  if (options.memory.host_layers && *options.memory.host_layers > config.layer_count()) {
    user_error("memory.host_layers: {} of a model with {} layers", *options.memory.host_layers, config.layer_count());
  }
  return choose_memory(config, engine, demands_of(options), budget_of(options, engine.device));
}

}  // namespace inlay::train
