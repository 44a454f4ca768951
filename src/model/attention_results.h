#pragma once

#include <optional>

#include "model/attention_block.h"
#include "model/layer_stash.h"

namespace inlay::model {

// Attention's outputs and log-sum-exps of one micro-batch, where the policy takes them off the device: the dearest
// thing to compute again once sequences are long. Elsewhere the attention block keeps them, or makes them again, by
// itself.
class AttentionResults {
 public:
  AttentionResults(Exec& exec, const ActivationPolicy& policy, const ModelConfig& config, std::int64_t tokens,
                   DType compute, StashPlace* place);

  // Around a layer's forward pass: where its results go, and that they are there.
  void open(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved);
  void written(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved);
  // Around its backward pass.
  void fetch(Exec& exec, std::int64_t layer, AttentionBlock::Saved& saved);
  void backward_done(Exec& exec, std::int64_t layer);

 private:
  bool leave(std::int64_t layer) const { return policy_.of(layer).offloads(Activation::attention); }

  const ActivationPolicy& policy_;
  std::int64_t layers_;
  std::optional<LayerStash> out_, lse_;
};

}  // namespace inlay::model
