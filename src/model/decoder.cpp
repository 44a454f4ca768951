#include "model/decoder.h"

#include <algorithm>

#include "model/decoding.h"
#include "model/rope_table.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"
#include "parallel/owner_layout.h"
#include "weights/products.h"

namespace inlay::model {

using backend::Grad;
using backend::ScratchScope;

Decoder::Decoder(Exec& exec, const ModelConfig& config, const DecoderOptions& options)
    : config_(config), options_(options), parameters_(config_), stash_place_(options.stash) {
  Arena& arena = exec.arena();
  static const weights::WeightPlan everything_trains;
  const weights::WeightPlan& plan = options_.weights != nullptr ? *options_.weights : everything_trains;
  place_parameters(plan);
  parameters_.for_each([&](weights::Parameter& p) {
    if (p.is_matrix()) return;
    weights::allocate_value(exec, p, options_.compute);
    if (options_.training) weights::allocate_training_state(exec, p);
  });
  const weights::WeightMemory memory{.compute = options_.compute, .training = options_.training};
  const auto make_weight = [&](Exec& e, weights::Parameter& p) {
    const weights::WeightKind& kind = plan.of(p);
    if (options_.fp8 && p.expert < 0) options_.fp8->apply(e, config_, plan, {&p, 1});
    std::unique_ptr<weights::Weight> weight = kind.make(e, p, memory);
    weights_.push_back(weight.get());
    return weight;
  };
  embedding_ = make_weight(exec, parameters_.embedding);
  for (std::size_t l = 0; l < parameters_.layers.size(); ++l) {
    MoeParameters& moe = parameters_.layers[l]->moe;
    for (std::vector<weights::Parameter>* experts : {&moe.gate_up, &moe.down}) {
      if (options_.fp8) options_.fp8->apply(exec, config_, plan, *experts);
    }
    layers_.push_back(
        std::make_unique<Layer>(exec, config_, config_.layers[l], *parameters_.layers[l], make_weight, balance_));
  }
  if (!config_.tied_embeddings) head_ = make_weight(exec, parameters_.head);
  if (options_.host_layers > 0 || options_.mesh.many()) {
    open_traffic(exec);
  } else {
    auto resident = std::make_unique<weights::ResidentWeights>();
    resident_ = resident.get();
    access_ = std::move(resident);
  }

  const auto make_table = [&](const RopeConfig& rope) {
    const std::int64_t positions = options_.max_positions;
    const Shape shape{rope_rows(rope, positions), rope.rotary_dim / 2, 2};
    const View table = arena.keep(MemoryClass::batch, "rope table", DType::f32, shape);
    if (!exec.planning()) exec.upload(table, rope_table(rope, positions).data());
    return table;
  };
  rope_tables_[0] = make_table(config_.rope);
  if (config_.local_rope.rotary_dim > 0) rope_tables_[1] = make_table(config_.local_rope);
  if (const std::vector<float>& bias = config_.attention.head_bias; !bias.empty()) {
    head_bias_ = arena.keep(MemoryClass::batch, "attention head bias", DType::f32, {config_.heads});
    if (!exec.planning()) exec.upload(head_bias_, bias.data());
  }
  objective_ = options_.objective != nullptr ? options_.objective->make(exec, options_.loss)
                                             : std::make_unique<NextToken>(exec, options_.loss);
  if (options_.training && config_.experts.balance > 0 && config_.expert_layers() > 0) {
    const Shape experts{config_.experts.count};
    balance_.sums.assigned = arena.keep(MemoryClass::batch, "experts' tokens", DType::i32, experts);
    balance_.sums.probability = arena.keep(MemoryClass::batch, "experts' probabilities", DType::f32, experts);
  }
}

// Where matrices live, and who changes them. Vectors are small, and many places read them: every process has them all.
void Decoder::place_parameters(const weights::WeightPlan& plan) {
  const std::int64_t first_on_host = config_.layer_count() - options_.host_layers;
  const parallel::Mesh& mesh = options_.mesh;
  const int ranks = mesh.shards->size();
  std::vector<weights::Parameter*> undivided;
  std::vector<double> costs;
  parameters_.for_each([&](weights::Parameter& p) {
    p.trainable = !plan.frozen.contains(p.name);
    if (!p.is_matrix()) return;
    const weights::WeightKind& kind = plan.of(p);
    const bool movable = kind.may_live_on_host();
    p.on_host = p.layer >= 0 && p.layer >= first_on_host && movable && !(mesh.many() && kind.made_on_arrival());
    p.holds_value = ranks > 1 && movable && (p.on_host || mesh.cuts(parallel::Zero::weights));
    if (!p.holds_value && !(mesh.cuts(parallel::Zero::state) && p.trainable && options_.training)) return;
    p.rank = mesh.shards->rank();
    p.first_copy = mesh.replicas->leads();
    p.holds_grad = p.on_host || mesh.cuts(parallel::Zero::gradients);
    if (kind.cuts_rows()) {
      p.cut = std::make_shared<parallel::RowCut>(parallel::RowCut::even(p.rows(), ranks));
    } else {
      undivided.push_back(&p);
      costs.push_back(static_cast<double>(p.size()));
    }
  });
  const parallel::OwnerLayout owners = parallel::assign_owners(costs, ranks);
  for (std::size_t i = 0; i < undivided.size(); ++i) {
    weights::Parameter& p = *undivided[i];
    p.cut = std::make_shared<parallel::RowCut>(parallel::RowCut::whole(p.rows(), ranks, owners.owners[i]));
  }
}

std::int64_t Decoder::group_of(const weights::Parameter& p) const {
  if (p.layer >= 0) return p.layer;
  return p.role == weights::Role::embedding ? weights::WeightAccess::embedding : config_.layer_count();
}

void Decoder::open_traffic(Exec& exec) {
  std::vector<weights::WeightTraffic::Group> groups(layers_.size() + 2);
  const auto its_group = [&](const weights::Parameter& p) -> weights::WeightTraffic::Group& {
    return groups[static_cast<std::size_t>(group_of(p) + 1)];
  };
  parameters_.for_each([&](weights::Parameter& p) {
    if (!p.is_matrix() && p.trains()) its_group(p).gradients.push_back(&p);
  });
  for (weights::Weight* weight : weights_) {
    weights::WeightTraffic::Group& group = its_group(weight->parameter());
    group.matrices.push_back(&weight->parameter());
    if (!options_.training) continue;
    weight->for_each_gradient([&](weights::Parameter& p) { group.gradients.push_back(&p); });
  }
  auto traffic = std::make_unique<weights::WeightTraffic>(exec, options_.mesh, groups);
  traffic_ = traffic.get();
  access_ = std::move(traffic);
}

// Where the head is tied to the embedding, that is held from here to the end of the way back, which writes to it again.
void Decoder::acquire_head(Exec& exec, weights::Pass pass) {
  access_->acquire(exec, config_.layer_count(), pass);
  if (head_ == nullptr) access_->acquire(exec, weights::WeightAccess::embedding, pass);
}

void Decoder::release_head(Exec& exec, weights::Pass pass) {
  if (head_ == nullptr && pass == weights::Pass::forward) {
    access_->release(exec, weights::WeightAccess::embedding, pass);
  }
  access_->release(exec, config_.layer_count(), pass);
}

Decoder::Layer::Layer(Exec& exec, const ModelConfig& config, const LayerConfig& layer, LayerParameters& parameters,
                      const weights::WeightFactory& make_weight, const RouterBalance& balance)
    : attention(exec, config, layer, parameters.attention, make_weight) {
  if (layer.experts) {
    mlp = std::make_unique<MoeBlock>(exec, config, parameters.moe, make_weight, balance);
  } else {
    mlp = std::make_unique<MlpBlock>(exec, config, parameters.mlp, make_weight);
  }
}

LayerContext Decoder::context(const DeviceBatch& batch) const {
  return {.batch = batch,
          .rope_tables = {rope_tables_[0], rope_tables_[1]},
          .head_bias = head_bias_,
          .deterministic_attention = options_.deterministic_attention};
}

DeviceBatch Decoder::to_device(Exec& exec, const PackedBatch& batch) const {
  return upload(exec, batch, long_row(config_.rope));
}

float Decoder::embedding_scale() const {
  const float scale = config_.embedding_scale;
  return config_.embedding_scale_rounds && options_.compute == DType::bf16 ? static_cast<float>(bf16(scale)) : scale;
}

void Decoder::embed(Exec& exec, View x, ConstView tokens) {
  embedding_->lookup(exec, x, tokens);
  if (config_.embedding_scale != 1) ops::scale(exec, x, x, embedding_scale());
}

void Decoder::final_hidden(Exec& exec, View hidden, ConstView x) {
  ops::rms_norm_forward(exec, hidden, x, parameters_.final_norm.value, norm_spec());
  if (config_.head_scale != 1) ops::scale(exec, hidden, hidden, config_.head_scale);
}

void Decoder::head_logits(Exec& exec, View logits, ConstView hidden) {
  acquire_head(exec, weights::Pass::forward);
  head().forward(exec, logits, Grad::overwrite, hidden);
  release_head(exec, weights::Pass::forward);
  if (config_.logit_softcap > 0) ops::softcap(exec, logits, config_.logit_softcap);
}

void Decoder::for_each_trained(const std::function<void(weights::Parameter&)>& visit) {
  parameters_.for_each([&](weights::Parameter& p) {
    if (p.trainable) visit(p);
  });
  for (weights::Weight* weight : weights_) weight->for_each_own(visit);
}

void Decoder::finish_gradients(Exec& exec) {
  exec.arena().begin_phase("finishing gradients");
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  access_->finish_gradients(exec);
  for (weights::Weight* weight : weights_) weight->finish_gradients(exec);
}

void Decoder::update_weights(Exec& exec) {
  exec.arena().begin_phase("rebuilding weights");
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  for (weights::Weight* weight : weights_) weight->updated(exec);
  forget_copies();
  access_->values_changed(exec);
}

void Decoder::start(Exec& exec, const weights::StartTensors* tensors) {
  for (weights::Weight* weight : weights_) weight->start(exec, tensors);
  forget_copies();
}

void Decoder::forget_copies() {
  for (weights::Weight* weight : weights_) {
    if (weight->parameter().fp8 != nullptr) weight->parameter().fp8->forget();
  }
}

void Decoder::begin_pass(bool training, bool base) {
  pass_.training = training;
  pass_.base = base;
  for (weights::Weight* weight : weights_) weight->begin_pass(pass_);
  if (training) ++pass_.micro_batch;
}

void Decoder::begin_step(Exec& exec, std::int64_t step, std::int64_t first_micro_batch) {
  pass_ = {.step = static_cast<std::uint64_t>(step), .micro_batch = static_cast<std::uint64_t>(first_micro_batch)};
  for_each_trained([](weights::Parameter& p) { p.forget_grad(); });
  objective_->begin_step(exec);
}

LossSums Decoder::read_loss(Exec& exec) {
  LossSums sums = objective_->read(exec);
  if (stash_place_.file != nullptr) stash_place_.file->check();
  return sums;
}

void Decoder::forward_layer(Exec& exec, std::size_t layer, View out, ConstView x, const LayerContext& context,
                            const LayerPolicy& policy, LayerSaved& saved) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  View residual = policy.keeps(Activation::residual)
                      ? arena.keep(MemoryClass::activations, "residual", x.dtype(), x.shape())
                      : arena.scratch("residual", x.dtype(), x.shape());
  layers_[layer]->attention.forward(exec, residual, x, context, policy, saved.attention);
  layers_[layer]->mlp->forward(exec, out, residual, x, policy, options_.mlp_tile, saved.mlp);
  if (policy.keeps(Activation::residual)) saved.mlp.residual = residual;
}

void Decoder::decode_layer(Exec& exec, std::size_t layer, View out, ConstView x, const LayerContext& context,
                           const KvCache& cache, const ops::CachePlaces& places) {
  const ScratchScope scope(exec.arena());
  View residual = exec.arena().scratch("residual", x.dtype(), x.shape());
  FeedForward::Saved nothing;
  layers_[layer]->attention.decode(exec, residual, x, context, cache.layer(layer), places);
  layers_[layer]->mlp->forward(exec, out, residual, x, LayerPolicy::recompute_all(), options_.mlp_tile, nothing);
}

HeadPass Decoder::head_pass(View hidden, const DeviceBatch& batch, const BatchWeight& divisor) {
  return {.hidden = hidden, .head = head(), .batch = batch, .softcap = config_.logit_softcap, .divisor = divisor};
}

View Decoder::forward_only(Exec& exec, const DeviceBatch& batch, bool base) {
  begin_pass(false, base);
  Arena& arena = exec.arena();
  const Shape stream_shape{batch.token_count, config_.hidden};
  const LayerContext layer_context = context(batch);
  View x = arena.scratch("hidden state", options_.compute, stream_shape);
  View next = arena.scratch("next hidden state", options_.compute, stream_shape);
  access_->acquire(exec, weights::WeightAccess::embedding, weights::Pass::forward);
  embed(exec, x, batch.tokens);
  access_->release(exec, weights::WeightAccess::embedding, weights::Pass::forward);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    access_->acquire(exec, static_cast<std::int64_t>(l), weights::Pass::forward);
    LayerSaved nothing;
    forward_layer(exec, l, next, x, layer_context, LayerPolicy::recompute_all(), nothing);
    std::swap(x, next);
    access_->release(exec, static_cast<std::int64_t>(l), weights::Pass::forward);
  }
  final_hidden(exec, next, x);
  return next;
}

void Decoder::observe(Exec& exec, const std::vector<PackedBatch>& batches, LayerObserver& observer) {
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  arena.begin_phase("calibration");
  begin_pass(false);
  std::vector<View> streams;
  for (const PackedBatch& packed : batches) {
    const Shape shape{packed.token_count(), config_.hidden};
    streams.push_back(arena.keep(MemoryClass::activations, "residual stream", options_.compute, shape));
    const std::size_t batch_mark = arena.mark();
    embed(exec, streams.back(), to_device(exec, packed).tokens);
    exec.synchronize();
    arena.release_to(batch_mark);
  }
  // body(stream, batch) for every batch, with its tokens and positions on the device.
  const auto for_each_batch = [&](const auto& body) {
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const ScratchScope scope(arena);
      const std::size_t batch_mark = arena.mark();
      body(streams[i], to_device(exec, batches[i]));
      arena.release_to(batch_mark);
    }
  };
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const auto layer = static_cast<std::int64_t>(l);
    access_->acquire(exec, layer, weights::Pass::forward);
    observer.begin_layer(exec, layer);
    for_each_batch([&](View stream, const DeviceBatch& batch) {
      View next = arena.scratch("next hidden state", options_.compute, stream.shape());
      LayerSaved nothing;
      forward_layer(exec, l, next, stream, context(batch), LayerPolicy::recompute_all(), nothing);
      observer.layer_output(exec, layer, stream, next);
      ops::cast(exec, stream, next);
    });
    observer.end_layer(exec, layer);
    access_->release(exec, layer, weights::Pass::forward);
  }
  observer.begin_head(exec);
  for_each_batch([&](View stream, const DeviceBatch&) {
    View hidden = arena.scratch("final hidden state", options_.compute, stream.shape());
    final_hidden(exec, hidden, stream);
    observer.final_hidden(exec, hidden);
  });
  observer.end_head(exec);
  arena.release_to(mark);
}

void Decoder::evaluate(Exec& exec, const PackedBatch& packed, const BatchWeight& divisor) {
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  arena.begin_phase("evaluation");
  {
    const ScratchScope scope(arena);
    const DeviceBatch batch = to_device(exec, packed);
    const View hidden = forward_only(exec, batch);
    acquire_head(exec, weights::Pass::forward);
    objective_->evaluate(exec, head_pass(hidden, batch, divisor));
    release_head(exec, weights::Pass::forward);
  }
  arena.release_to(mark);
}

void Decoder::decode(Exec& exec, View logits, const DecodeRows& rows, const KvCache& cache, ConstView picked) {
  INLAY_ASSERT(cache.capacity() <= options_.max_positions, "a cache for {} positions and a decoder for {}",
               cache.capacity(), options_.max_positions);
  begin_pass(false);
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  DeviceBatch batch;
  batch.positions = rows.places.positions;
  batch.cu_seqlens = rows.cu_seqlens;
  batch.host_cu_seqlens = rows.host_cu_seqlens;
  LayerContext layer_context = context(batch);
  for (ConstView& table : layer_context.rope_tables) {
    if (!table.absent()) table = table.slice_rows(cache.first_row(), table.dim(0));
  }

  const Shape stream_shape{rows.tokens.dim(0), config_.hidden};
  View x = arena.scratch("hidden state", options_.compute, stream_shape);
  View next = arena.scratch("next hidden state", options_.compute, stream_shape);
  access_->acquire(exec, weights::WeightAccess::embedding, weights::Pass::forward);
  embed(exec, x, rows.tokens);
  access_->release(exec, weights::WeightAccess::embedding, weights::Pass::forward);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    access_->acquire(exec, static_cast<std::int64_t>(l), weights::Pass::forward);
    decode_layer(exec, l, next, x, layer_context, cache, rows.places);
    std::swap(x, next);
    access_->release(exec, static_cast<std::int64_t>(l), weights::Pass::forward);
  }
  if (logits.absent()) return;
  if (!picked.absent()) {
    next = next.slice_rows(0, picked.dim(0));
    ops::gather_rows(exec, next, x, picked);
    std::swap(x, next);
    next = next.slice_rows(0, picked.dim(0));
  }
  final_hidden(exec, next, x);
  head_logits(exec, logits, next);
}

std::vector<float> Decoder::row_losses(Exec& exec, const PackedBatch& packed) {
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  arena.begin_phase("evaluation");
  std::vector<float> result(static_cast<std::size_t>(packed.token_count()));
  {
    const ScratchScope scope(arena);
    const DeviceBatch batch = to_device(exec, packed);
    const View hidden = forward_only(exec, batch);
    const View losses = arena.scratch("row losses", DType::f32, {batch.token_count});
    acquire_head(exec, weights::Pass::forward);
    ops::fused_linear_ce(
        exec, head(), {.hidden = hidden, .targets = batch.targets, .rows = batch.valid_rows}, {.loss = losses},
        {.softcap = config_.logit_softcap, .reduction = ops::Reduction::none, .chunk_tokens = options_.loss.chunk});
    release_head(exec, weights::Pass::forward);
    exec.download(result.data(), losses);
  }
  arena.release_to(mark);
  return result;
}

std::vector<float> Decoder::logits(Exec& exec, const PackedBatch& packed, const std::vector<std::int32_t>& rows) {
  constexpr std::int64_t chunk = 256;
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  std::vector<float> result(rows.size() * static_cast<std::size_t>(config_.vocab));
  {
    const ScratchScope scope(arena);
    const DeviceBatch batch = to_device(exec, packed);
    const View hidden = forward_only(exec, batch);
    const auto count = static_cast<std::int64_t>(rows.size());
    const std::int64_t most = std::min(chunk, std::max<std::int64_t>(count, 1));
    View index = arena.scratch("logit rows", DType::i32, {most});
    View picked = arena.scratch("picked hidden states", options_.compute, {most, config_.hidden});
    View slab = arena.scratch(MemoryClass::logits, "logits", DType::f32, {most, config_.vocab});
    for (std::int64_t begin = 0; begin < count; begin += most) {
      const std::int64_t n = std::min(most, count - begin);
      exec.upload(index.slice_rows(0, n), rows.data() + begin);
      ops::gather_rows(exec, picked.slice_rows(0, n), hidden, index.slice_rows(0, n));
      head_logits(exec, slab.slice_rows(0, n), picked.slice_rows(0, n));
      exec.download(result.data() + begin * config_.vocab, slab.slice_rows(0, n));
    }
  }
  arena.release_to(mark);
  return result;
}

void Decoder::next_logits(Exec& exec, View logits, const PackedBatch& packed) {
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  {
    const ScratchScope scope(arena);
    const DeviceBatch batch = to_device(exec, packed);
    const View hidden = forward_only(exec, batch);
    std::vector<std::int32_t> last(packed.cu_seqlens.begin() + 1, packed.cu_seqlens.end());
    for (std::int32_t& row : last) --row;
    const std::int64_t documents = packed.document_count();
    const View index = arena.scratch("last rows", DType::i32, {documents});
    const View picked = arena.scratch("picked hidden states", options_.compute, {documents, config_.hidden});
    exec.upload(index, last.data());
    ops::gather_rows(exec, picked, hidden, index);
    head_logits(exec, logits, picked);
  }
  arena.release_to(mark);
}

}  // namespace inlay::model
