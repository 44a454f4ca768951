#include "model/attention_results.h"

namespace inlay::model {

AttentionResults::AttentionResults(Exec& exec, const ActivationPolicy& policy, const ModelConfig& config,
                                   std::int64_t tokens, DType compute, StashPlace* place)
    : policy_(policy), layers_(config.layer_count()) {
  bool any = false;
  for (std::int64_t layer = 0; layer < layers_; ++layer) any = any || leave(layer);
  if (!any) return;
  out_.emplace(exec, "attention output", compute, Shape{tokens, config.q_width()}, 2, place);
  lse_.emplace(exec, "attention log-sum-exp", DType::f32, Shape{tokens, config.heads}, 2, place);
}

void AttentionResults::open(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved) {
  if (!leave(layer)) return;
  saved.out = out_->open(exec, layer);
  saved.lse = lse_->open(exec, layer);
}

// The last layer's stay in their slabs: the backward pass begins with them.
void AttentionResults::written(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved) {
  if (!leave(layer) || layer == layers_ - 1) return;
  for (LayerStash* stash : {&*out_, &*lse_}) {
    stash->store(exec, layer);
    stash->close(exec, layer);
  }
  saved.out = saved.lse = {};
}

void AttentionResults::fetch(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved) {
  if (!leave(layer)) return;
  saved.out = out_->fetch(exec, layer);
  saved.lse = lse_->fetch(exec, layer);
  if (layer == 0 || !leave(layer - 1)) return;
  for (LayerStash* stash : {&*out_, &*lse_}) stash->prefetch(exec, layer - 1);
}

void AttentionResults::backward_done(Exec& exec, std::int64_t layer) {
  if (!leave(layer)) return;
  for (LayerStash* stash : {&*out_, &*lse_}) stash->close(exec, layer);
}

}  // namespace inlay::model
