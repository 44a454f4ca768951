#include "model/layer_results.h"

namespace inlay::model {

LayerResults::LayerResults(Exec& exec, const ActivationPolicy& policy, const ModelConfig& config, std::int64_t tokens,
                           DType compute, StashPlace* place)
    : policy_(policy), config_(config) {
  const auto gate_up = [](LayerSaved& saved) -> View& { return saved.mlp.gate_up; };
  const std::int64_t pairs = tokens * config.experts.chosen;
  kinds_ = {{Activation::attention,
             "attention output",
             compute,
             {tokens, config.q_width()},
             [](LayerSaved& saved) -> View& { return saved.attention.out; }},
            {Activation::attention,
             "attention log-sum-exp",
             DType::f32,
             {tokens, config.heads},
             [](LayerSaved& saved) -> View& { return saved.attention.lse; }},
            {Activation::gate_up, "gate and up", compute, {tokens, 2 * config.intermediate}, gate_up},
            {Activation::gate_up,
             "gate and up of experts",
             compute,
             {pairs, 2 * config.experts.intermediate},
             gate_up,
             true}};
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) {
      if (!leaves(kinds_[i], layer)) continue;
      stashes_.try_emplace(i, exec, kinds_[i].name, kinds_[i].dtype, kinds_[i].shape, 2, place);
      break;
    }
  }
}

bool LayerResults::leaves(const Kind& kind, std::int64_t layer) const {
  if (!policy_.of(layer).offloads(kind.activation)) return false;
  const bool experts = config_.layers[static_cast<std::size_t>(layer)].experts;
  return kind.activation != Activation::gate_up || kind.of_experts == experts;
}

template <class Body>
void LayerResults::for_each_leaving(std::int64_t layer, const Body& body) {
  for (auto& [i, stash] : stashes_) {
    if (leaves(kinds_[i], layer)) body(kinds_[i], stash);
  }
}

void LayerResults::open(Exec& exec, std::int64_t layer, LayerSaved& saved) {
  for_each_leaving(layer, [&](const Kind& kind, LayerStash& stash) { kind.place(saved) = stash.open(exec, layer); });
}

// The last layer's stay in their slabs: the backward pass begins with them.
void LayerResults::written(Exec& exec, std::int64_t layer, LayerSaved& saved) {
  if (layer == config_.layer_count() - 1) return;
  for_each_leaving(layer, [&](const Kind& kind, LayerStash& stash) {
    stash.store(exec, layer);
    stash.close(exec, layer);
    kind.place(saved) = {};
  });
}

// The next ones that are not here begin to come back.
void LayerResults::fetch(Exec& exec, std::int64_t layer, LayerSaved& saved) {
  for_each_leaving(layer, [&](const Kind& kind, LayerStash& stash) { kind.place(saved) = stash.fetch(exec, layer); });
  for (auto& [i, stash] : stashes_) {
    std::int64_t next = layer - 1;
    while (next >= 0 && !leaves(kinds_[i], next)) --next;
    if (next >= 0) stash.prefetch(exec, next);
  }
}

void LayerResults::backward_done(Exec& exec, std::int64_t layer) {
  for_each_leaving(layer, [&](const Kind&, LayerStash& stash) { stash.close(exec, layer); });
}

}  // namespace inlay::model
