#include "train/engine.h"

#include <algorithm>

#include "model/decoding.h"

namespace inlay::train {

namespace {

PackedBatch largest_batch(const EngineOptions& options, std::int64_t tokens, std::int64_t longest) {
  std::vector<Document> documents;
  for (std::int64_t left = tokens; left > 0;) {
    const auto length = static_cast<std::size_t>(std::min(left, longest));
    Document document;
    document.input_ids.assign(length, 0);
    document.labels.assign(length, 0);
    if (!options.roles.empty()) {
      document.labels.front() = sequence_mark(options.roles[documents.size() % options.roles.size()]);
      if (options.reference) document.reference = {0.0f};
    }
    if (const std::int64_t kept = options.kept_predictions; kept > 0) {
      document.kept.per_token = kept;
      document.kept.ids.assign(length * static_cast<std::size_t>(kept), -1);
      document.kept.log_probs.assign(length * static_cast<std::size_t>(kept), 0.0f);
    }
    documents.push_back(std::move(document));
    left -= static_cast<std::int64_t>(length);
  }
  return pack(documents);
}

// A batch as large as any that may come: documents as long as allowed, every label counted.
PackedBatch largest_batch(const EngineOptions& options) {
  PackedBatch batch = largest_batch(options, options.max_tokens, options.max_document);
  if (options.others_tokens > 0) {
    batch.others.push_back(largest_batch(options, options.others_tokens, options.others_document));
    batch.others_rows.assign(batch.tokens.size(), 0);
  }
  return batch;
}

// A token and nothing to learn: what a process does while others have a micro-batch and it has none.
PackedBatch idle_batch() { return pack(std::vector<Document>{{.input_ids = {0}, .labels = {ignore_label}}}); }

// What a plan's weights start from.
struct Nothing final : weights::StartTensors {
  bool has(const std::string&) const override { return false; }
  const void* at(const std::string&, DType, const Shape&) const override { return nullptr; }
};

model::DecoderOptions plain_decoder_options(const EngineOptions& options) {
  return {.compute = options.compute,
          .fp8 = options.fp8,
          .training = options.training,
          .policy = options.policy,
          .mlp_tile = options.mlp_tile,
          .loss = options.loss,
          .objective = options.objective,
          .max_positions = std::max({options.max_document, options.decode_length, options.others_document}),
          .stash = {.on_disk = !options.spill_folder.empty(), .file = nullptr},
          .host_layers = options.host_layers,
          .deterministic_attention = options.deterministic,
          .weights = options.weights,
          .mesh = options.mesh};
}

// Another model multiplies as this one does, and is gone through without keeping anything.
model::DecoderOptions other_options(const EngineOptions& options, const model::ModelConfig& config) {
  return {.compute = options.compute,
          .fp8 = options.fp8,
          .mlp_tile = options.mlp_tile,
          .max_positions = std::max(options.max_document, options.others_document),
          .host_layers = options.other.on_host ? config.layer_count() : 0,
          .deterministic_attention = options.deterministic,
          .mesh = options.mesh};
}

model::DecoderOptions decoder_options(const EngineOptions& options, std::shared_ptr<backend::SpillFile> spill) {
  model::DecoderOptions result = plain_decoder_options(options);
  result.stash.file = std::move(spill);
  return result;
}

StagingOptions staging_options(const EngineOptions& options) {
  return {.what = options.staged,
          .exact = options.saved_otherwise,
          .leads = options.mesh.all->leads(),
          .adapters = options.saves_adapter ? (options.saves_start ? 2 : 1) : 0};
}

}  // namespace

BatchExtent extent_of(const PackedBatch& batch) {
  BatchExtent extent{.tokens = static_cast<double>(batch.token_count())};
  for (std::size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const auto length = static_cast<double>(batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
    extent.squares += length * length;
  }
  return extent;
}

Engine::Engine(Exec exec, const model::ModelConfig& config, const EngineOptions& options,
               std::shared_ptr<backend::SpillFile> spill)
    : exec_(std::move(exec)), options_(options), decoder_(exec_, config, decoder_options(options, std::move(spill))) {
  exec_.set_messages(options.messages);
  if (options.training && options.other.wanted) {
    if (options.other.itself) {
      decoder_.set_itself_as_other();
    } else if (!options.other.config && decoder_.learns_beside()) {
      decoder_.set_base_as_other();
    } else {
      const model::ModelConfig& other = options.other.config ? *options.other.config : config;
      other_ = std::make_unique<model::Decoder>(exec_, other, other_options(options, other));
      decoder_.set_other(*other_);
    }
  }
  if (options.training && options.optimizer_state) {
    optimizer_ = std::make_unique<Optimizer>(exec_, decoder_, options.optimizer);
    if (options.staged != Staged::nothing) {
      staging_ = std::make_unique<Staging>(exec_, decoder_, *optimizer_, staging_options(options));
    }
  }
}

void Engine::rehearse() {
  INLAY_ASSERT(exec_.planning(), "only a plan is rehearsed");
  Arena& arena = exec_.arena();
  arena.begin_phase("loading");
  model::load_weights(exec_, decoder_.parameters(), nullptr);
  const Nothing nothing;
  decoder_.start(exec_, &nothing);
  if (other_ != nullptr) {
    model::load_weights(exec_, other_->parameters(), nullptr);
    other_->start(exec_, nullptr);
  }
  const PackedBatch batch = largest_batch(options_);
  if (options_.training) {
    decoder_.begin_step(exec_);
    if (optimizer_ != nullptr) optimizer_->begin_step(1, 1, 0.0);
    decoder_.forward_backward(exec_, batch, {1.0, 1.0});
    disk_bytes_ = decoder_.disk_bytes();
  }
  decoder_.evaluate(exec_, batch, {1.0, 1.0});
  if (options_.row_losses) decoder_.row_losses(exec_, batch);
  if (options_.logit_rows > 0) {
    decoder_.logits(exec_, batch, std::vector<std::int32_t>(static_cast<std::size_t>(options_.logit_rows)));
  }
  if (options_.training) decoder_.finish_gradients(exec_);
  if (options_.decode_sequences > 0) {
    // As many tokens as may be given at once, and one that is made of them.
    const std::int64_t given = std::max<std::int64_t>(options_.decode_length - 1, 1);
    const std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(options_.decode_sequences),
                                                         std::vector<std::int32_t>(static_cast<std::size_t>(given)));
    model::continue_texts(exec_, decoder_, prompts, {.count = 2});
  }
  if (optimizer_ == nullptr) return;
  look_ahead(2);
  optimizer_->step(exec_, 1, 0.0);
  decoder_.update_weights(exec_);
  arena.begin_phase("saving");
  leak();
  decoder_.parameters().for_each([&](weights::Parameter& p) {
    if (options_.saves_adapter && !p.trainable) return;
    for (const weights::Part& part : p.parts) model::read_part(exec_, p, part, DType::f32, nullptr, [](auto) {});
  });
}

MemoryPlan Engine::plan(const model::ModelConfig& config, const EngineOptions& options) {
  Engine engine(Exec::planner(options.device), config, options);
  engine.rehearse();
  const Arena& arena = engine.exec_.arena();
  std::int64_t trained = 0;
  if (options.training) {
    engine.decoder_.for_each_trained([&](const weights::Parameter& p) { trained += p.size(); });
  }
  return {.device_peak = arena.peak(),
          .classes = arena.peak_by_class(),
          .phases = arena.phases(),
          .host_peak = engine.exec_.host().arena().peak(),
          .host_classes = engine.exec_.host().arena().peak_by_class(),
          .disk_bytes = engine.disk_bytes_,
          .trained = trained,
          .policy = options.policy,
          .cost = engine.exec_.cost(),
          .batch = extent_of(largest_batch(options))};
}

std::unique_ptr<Engine> Engine::create(const model::ModelConfig& config, const EngineOptions& options) {
  const MemoryPlan needs = plan(config, options);
  std::shared_ptr<backend::SpillFile> spill;
  if (needs.disk_bytes > 0) spill = std::make_shared<backend::SpillFile>(options.spill_folder, needs.disk_bytes);
  return std::make_unique<Engine>(Exec::runner(options.device, needs.device_peak, needs.host_peak), config, options,
                                  std::move(spill));
}

void Engine::load(const io::Checkpoint& checkpoint, const model::Progress& progress) {
  model::check_tied_head(decoder_.config(), checkpoint);
  model::load_weights(exec_, decoder_.parameters(), &checkpoint, progress);
  exec_.synchronize();
}

void Engine::load_other(const io::Checkpoint& checkpoint, const model::Progress& progress) {
  model::check_tied_head(other_->config(), checkpoint);
  model::load_weights(exec_, other_->parameters(), &checkpoint, progress);
  other_->start(exec_, nullptr);
  exec_.synchronize();
}

void Engine::start(const weights::StartTensors* tensors) { decoder_.start(exec_, tensors); }

double Engine::leak() {
  std::vector<double> sums;
  for (weights::Weight* weight : decoder_.weights()) {
    const weights::Leak leak = weight->leak(exec_);
    sums.insert(sums.end(), {leak.outside, leak.all});
  }
  sums = options_.mesh.all->sum(sums, "what lies in frozen directions");
  double most = 0;
  for (std::size_t i = 0; i < sums.size(); i += 2) {
    const double share = weights::Leak{.outside = sums[i], .all = sums[i + 1]}.share();
    if (!(share <= most)) most = share;  // NaN stays
  }
  return most;
}

bool Engine::passes_together() const {
  const parallel::Mesh& mesh = options_.mesh;
  const bool on_host = options_.host_layers > 0 || (other_ != nullptr && options_.other.on_host);
  return mesh.many() && (mesh.cuts(parallel::Zero::gradients) || on_host);
}

StepResult Engine::gradients(const std::vector<PackedBatch>& micro_batches, std::int64_t step, const StepShare& share) {
  StepResult result;
  const model::Objective& objective = decoder_.objective();
  double units = 0, labels = 0;
  for (const PackedBatch& batch : micro_batches) {
    const model::BatchWeight weight = objective.weight(batch);
    result.tokens += batch.token_count();
    result.valid += batch.valid_count();
    units += weight.units;
    labels += weight.labels;
  }
  result.weight = units;
  const parallel::Mesh& mesh = options_.mesh;
  const auto mine = static_cast<std::int64_t>(micro_batches.size());
  std::int64_t passes = mine;
  if (mesh.many()) {
    result.tokens = share.tokens;
    result.valid = share.valid;
    result.weight = share.weight;
    if (objective.counts_documents()) {
      const double own[] = {units, labels};
      const std::vector<double> all = mesh.all->sum(own, "the documents of a step");
      result.weight = all[0];
      labels = all[1];
    }
    passes = std::max<std::int64_t>(passes_together() ? share.passes : mine, 1);
  }
  decoder_.begin_step(exec_, step, share.first_micro_batch);
  for (std::int64_t i = 0; i < passes; ++i) {
    decoder_.forward_backward(exec_, i < mine ? micro_batches[static_cast<std::size_t>(i)] : idle_batch(),
                              {.units = result.weight > 0 ? result.weight : 1.0, .labels = labels > 0 ? labels : 1.0},
                              i + 1 == passes);
  }
  decoder_.finish_gradients(exec_);
  return result;
}

void Engine::look_ahead(std::int64_t step) {
  if (options_.optimizer.kind != OptimizerKind::schedule_free) return;
  if (staging_ != nullptr) staging_->before_update(exec_);
  optimizer_->look_ahead(exec_, step);
  decoder_.update_weights(exec_);
}

void Engine::account(double learning_rate) { optimizer_->account(learning_rate); }

StepResult Engine::train_step(const std::vector<PackedBatch>& micro_batches, std::int64_t step, double learning_rate,
                              const StepShare& share) {
  const auto mine = static_cast<std::int64_t>(micro_batches.size());
  look_ahead(step);
  optimizer_->begin_step(static_cast<int>(passes_together() ? std::max(share.passes, mine) : mine), step,
                         learning_rate);
  if (staging_ != nullptr && optimizer_->beside() != nullptr) staging_->before_update(*optimizer_->beside());
  StepResult result = gradients(micro_batches, step, share);
  if (staging_ != nullptr) staging_->before_update(exec_);
  optimizer_->step(exec_, step, learning_rate);
  decoder_.update_weights(exec_);
  const model::LossSums sums = decoder_.read_loss(exec_);
  result.loss = sums.loss;
  result.z_loss = sums.z_loss;
  std::vector<double> parts = sums.parts;
  if (options_.mesh.many()) {
    std::vector<double> losses = {sums.loss, sums.z_loss};
    losses.insert(losses.end(), parts.begin(), parts.end());
    const std::vector<double> all = options_.mesh.all->sum(losses, "the loss of a step");
    result.loss = all[0];
    result.z_loss = all[1];
    parts.assign(all.begin() + 2, all.end());
  }
  result.metrics = decoder_.objective().metrics(parts);
  const GradientNorms norms = optimizer_->read_grad_norms(exec_);
  result.grad_norm = norms.projected;
  result.raw_grad_norm = norms.raw;
  return result;
}

model::LossSums Engine::evaluate(const PackedBatch& batch) {
  decoder_.begin_step(exec_);
  decoder_.evaluate(exec_, batch, {1.0, 1.0});
  return decoder_.read_loss(exec_);
}

void Engine::idle_evaluation() { evaluate(idle_batch()); }

std::vector<float> Engine::row_losses(const PackedBatch& batch) {
  INLAY_ASSERT(options_.row_losses, "this engine was not planned for row losses");
  return decoder_.row_losses(exec_, batch);
}

}  // namespace inlay::train
