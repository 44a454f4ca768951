#include "model/layer_inputs.h"

#include <algorithm>

namespace inlay::model {

LayerInputs::LayerInputs(Exec& exec, const ActivationPolicy& policy, std::int64_t layers, DType dtype, Shape shape,
                         StashPlace* place)
    : policy_(policy), layers_(layers), dtype_(dtype), shape_(shape), kept_(static_cast<std::size_t>(layers + 1)) {
  bool any = false, remade = false;
  for (std::int64_t i = 0; i < layers; ++i) {
    any = any || storage(i) != Storage::keep;
    remade = remade || storage(i) == Storage::recompute;
  }
  // Two take turns: the input that is worked on and the next one. Where an input is made again from the one before,
  // both are there while the next comes.
  if (any) stash_.emplace(exec, "layer input", dtype, shape, remade ? 3 : 2, place);
}

Storage LayerInputs::storage(std::int64_t i) const { return policy_.of(std::min(i, layers_ - 1))[Activation::input]; }

View LayerInputs::open(Exec& exec, std::int64_t i) {
  if (storage(i) != Storage::keep) return stash_->open(exec, i);
  View& view = kept_[static_cast<std::size_t>(i)];
  view = exec.arena().keep(MemoryClass::activations, "layer input", dtype_, shape_);
  return view;
}

// The last two stay in their slabs: the backward pass begins with them.
void LayerInputs::written(Exec& exec, std::int64_t i) {
  if (storage(i) == Storage::offload && i < layers_ - 1) stash_->store(exec, i);
}

void LayerInputs::forward_done(Exec& exec, std::int64_t i) {
  if (storage(i) != Storage::keep && i < layers_ - 1) stash_->close(exec, i);
}

void LayerInputs::prefetch_below(Exec& exec, std::int64_t i) {
  std::int64_t next = i - 1;
  while (next >= 0 && !(stash_->stored(next) && !stash_->holds(next))) --next;
  if (next >= 0) stash_->prefetch(exec, next);
}

View LayerInputs::fetch(Exec& exec, std::int64_t i, const Remake& remake) {
  if (storage(i) == Storage::keep) return kept_[static_cast<std::size_t>(i)];
  View input;
  if (stash_->holds(i) || stash_->stored(i)) {
    input = stash_->fetch(exec, i);
  } else {
    const View before =
        storage(i - 1) == Storage::keep ? kept_[static_cast<std::size_t>(i - 1)] : stash_->fetch(exec, i - 1);
    input = stash_->open(exec, i);
    remake(i - 1, input, before);
  }
  prefetch_below(exec, i);
  return input;
}

void LayerInputs::backward_done(Exec& exec, std::int64_t i) {
  if (storage(i) != Storage::keep) stash_->close(exec, i);
}

}  // namespace inlay::model
