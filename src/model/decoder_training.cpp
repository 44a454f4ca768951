#include "model/decoder.h"
#include "model/norm_grads.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

// A micro-batch there and back. What lies between the passes is where the policy says (layer_inputs.h,
// layer_results.h); what must be made again is made in backward_layer.
namespace inlay::model {

using backend::CostScope;
using backend::Grad;
using backend::ScratchScope;
using backend::StepPart;
using weights::Pass;
using weights::WeightAccess;

void Decoder::backward_layer(Exec& exec, std::size_t layer, View grad, ConstView x, const LayerContext& context,
                             LayerSaved& saved) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  Layer& blocks = *layers_[layer];
  blocks.attention.recompute(exec, x, context, saved.attention);
  {
    const ScratchScope mlp_scope(arena);
    if (saved.mlp.residual.absent()) {
      const CostScope again(exec, StepPart::recompute);
      saved.mlp.residual = arena.scratch("residual", x.dtype(), x.shape());
      blocks.attention.output(exec, saved.mlp.residual, saved.attention);
      ops::add(exec, saved.mlp.residual, x);
    }
    blocks.mlp->backward(exec, grad, saved.mlp.residual, options_.mlp_tile, saved.mlp);
  }
  blocks.attention.backward(exec, grad, x, context, saved.attention);
}

void Decoder::remake_input(Exec& exec, std::int64_t layer, View out, ConstView in, const LayerContext& context) {
  const CostScope again(exec, StepPart::recompute);
  LayerSaved nothing;
  access_->acquire(exec, layer, Pass::forward);
  forward_layer(exec, static_cast<std::size_t>(layer), out, in, context, LayerPolicy::recompute_all(), nothing);
  access_->release(exec, layer, Pass::forward);
}

void Decoder::begin_balance(Exec& exec) {
  if (!balance_.sums.assigned) return;
  exec.fill_zero(balance_.sums.assigned);
  exec.fill_zero(balance_.sums.probability);
  balance_.counting = true;
}

// It is a mean over the micro-batch's tokens, so a step weights it by the share of labels that the micro-batch has.
void Decoder::finish_balance(Exec& exec, const PackedBatch& batch, double normalizer) {
  if (!balance_.sums.assigned) return;
  balance_.counting = false;
  const double rows = static_cast<double>(batch.token_count()) * static_cast<double>(config_.expert_layers());
  const double factor = config_.experts.balance * objective_->weight(batch).units / normalizer;
  ops::moe_balance_loss(exec, objective_->loss(), balance_.sums, rows, factor);
  balance_.factor = static_cast<float>(factor * static_cast<double>(config_.experts.count) / (rows * rows));
}

bool Decoder::learns_beside() {
  bool beside = true;
  parameters_.for_each([&](const weights::Parameter& p) { beside = beside && !p.trainable; });
  for (const weights::Weight* weight : weights_) beside = beside && weight->keeps_base();
  return beside;
}

void Decoder::set_base_as_other() {
  INLAY_ASSERT(learns_beside(), "the base model was overwritten");
  other_ = this;
  base_is_other_ = true;
}

View Decoder::other_hidden(Exec& exec, const PackedBatch& packed) {
  if (other_ == nullptr) return {};
  Arena& arena = exec.arena();
  const Shape shape{packed.token_count(), other_->config_.hidden};
  const View kept = arena.keep(MemoryClass::activations, "the other model's hidden state", options_.compute, shape);
  const std::size_t mark = arena.mark();
  {
    const ScratchScope scope(arena);
    const bool otherwise = !packed.others.empty();
    const DeviceBatch seen = other_->to_device(exec, otherwise ? packed.others.front() : packed);
    const View hidden = other_->forward_only(exec, seen, base_is_other_);
    if (otherwise) {
      const View rows = arena.scratch("rows of the other model", DType::i32, {packed.token_count()});
      exec.upload(rows, packed.others_rows.data());
      ops::gather_rows(exec, kept, hidden, rows);
    } else {
      ops::cast(exec, kept, hidden);
    }
  }
  arena.release_to(mark);
  return kept;
}

ops::OtherModel Decoder::open_other(Exec& exec, ConstView hidden, const DeviceBatch& batch) {
  if (other_ == nullptr) return {.ids = batch.kept_ids, .log_probs = batch.kept_log_probs};
  if (other_ != this) other_->acquire_head(exec, Pass::forward);
  ops::Linear& head = other_->head();
  return {.head = base_is_other_ ? &this->head().base() : &head,
          .hidden = hidden,
          .softcap = other_->config_.logit_softcap};
}

void Decoder::close_other(Exec& exec) {
  if (other_ != nullptr && other_ != this) other_->release_head(exec, Pass::forward);
}

void Decoder::forward_backward(Exec& exec, const PackedBatch& packed, const BatchWeight& divisor, bool last) {
  INLAY_ASSERT(options_.training, "this decoder was made for evaluation");
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark(), host_mark = exec.host().arena().mark();
  const ScratchScope step_scope(arena);
  stash_place_.bytes = 0;
  const CostScope forward(exec, StepPart::forward);
  arena.begin_phase("forward");
  const View others = other_hidden(exec, packed);
  begin_pass(true);
  access_->begin_pass(last);
  const DeviceBatch batch = to_device(exec, packed);
  const LayerContext layer_context = context(batch);
  const Shape stream_shape{batch.token_count, config_.hidden};
  const auto layers = static_cast<std::int64_t>(layers_.size());
  LayerInputs inputs(exec, options_.policy, layers, options_.compute, stream_shape, &stash_place_);
  LayerResults results(exec, options_.policy, config_, batch.token_count, options_.compute, &stash_place_);
  std::vector<LayerSaved> saved(layers_.size());

  begin_balance(exec);
  View x = inputs.open(exec, 0);
  access_->acquire(exec, WeightAccess::embedding, Pass::forward);
  embed(exec, x, batch.tokens);
  access_->release(exec, WeightAccess::embedding, Pass::forward);
  inputs.written(exec, 0);
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerSaved& mine = saved[static_cast<std::size_t>(l)];
    access_->acquire(exec, l, Pass::forward);
    mine.mark = arena.mark();
    const View out = inputs.open(exec, l + 1);
    results.open(exec, l, mine);
    forward_layer(exec, static_cast<std::size_t>(l), out, x, layer_context, options_.policy.of(l), mine);
    results.written(exec, l, mine);
    inputs.written(exec, l + 1);
    inputs.forward_done(exec, l);
    access_->release(exec, l, Pass::forward);
    x = out;
  }

  arena.begin_phase("loss");
  finish_balance(exec, packed, divisor.units);
  View grad = arena.scratch(MemoryClass::activations, "residual gradient", options_.compute, stream_shape);
  {
    const ScratchScope scope(arena);
    View hidden = arena.scratch("final hidden state", options_.compute, stream_shape);
    weights::Parameter& norm = parameters_.final_norm;
    acquire_head(exec, Pass::backward);
    final_hidden(exec, hidden, x);
    HeadPass pass = head_pass(hidden, batch, divisor);
    pass.other = open_other(exec, others, batch);
    objective_->train(exec, pass);  // hidden becomes its own gradient
    close_other(exec);
    const CostScope backward(exec, StepPart::backward);
    if (config_.head_scale != 1) ops::scale(exec, hidden, hidden, config_.head_scale);
    ops::rms_norm_backward(exec, norm_grads(grad, Grad::overwrite, norm), hidden, x, norm.value, norm_spec());
    release_head(exec, Pass::backward);
  }
  inputs.backward_done(exec, layers);

  const CostScope backward(exec, StepPart::backward);
  arena.begin_phase("backward");
  for (std::int64_t l = layers; l-- > 0;) {
    LayerSaved& mine = saved[static_cast<std::size_t>(l)];
    const View input = inputs.fetch(exec, l, [&](std::int64_t layer, View out, ConstView in) {
      remake_input(exec, layer, out, in, layer_context);
    });
    access_->acquire(exec, l, Pass::backward);
    results.fetch(exec, l, mine);
    backward_layer(exec, static_cast<std::size_t>(l), grad, input, layer_context, mine);
    results.backward_done(exec, l);
    inputs.backward_done(exec, l);
    arena.release_to(mine.mark);
    access_->release(exec, l, Pass::backward);
  }
  const bool tied = head_ == nullptr;
  if (!tied) access_->acquire(exec, WeightAccess::embedding, Pass::gradients);
  if (embedding_->trainable()) {
    if (config_.embedding_scale != 1) ops::scale(exec, grad, grad, embedding_scale());
    embedding_->accumulate_lookup(exec, grad, batch.token_groups);
  }
  access_->release(exec, WeightAccess::embedding, tied ? Pass::backward : Pass::gradients);
  arena.release_to(mark);
  exec.host().arena().release_to(host_mark);
}

}  // namespace inlay::model
