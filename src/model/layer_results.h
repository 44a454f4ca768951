#pragma once

#include <map>

#include "model/attention_block.h"
#include "model/feed_forward.h"
#include "model/layer_stash.h"

namespace inlay::model {

// What a layer keeps for its backward pass.
struct LayerSaved {
  std::size_t mark = 0;  // the arena's bottom before this layer kept anything
  AttentionBlock::Saved attention;
  FeedForward::Saved mlp;
};

// What the layers of one micro-batch compute and the policy takes off the device until the way back: attention's
// outputs and log-sum-exps, the dearest thing to compute again once sequences are long, and gate and up, the largest.
// Elsewhere the blocks keep them, or make them again, by themselves.
class LayerResults {
 public:
  LayerResults(Exec& exec, const ActivationPolicy& policy, const ModelConfig& config, std::int64_t tokens,
               DType compute, StashPlace* place);

  // Around a layer's forward pass: where its results go, and that they are there.
  void open(Exec& exec, std::int64_t layer, LayerSaved& saved);
  void written(Exec& exec, std::int64_t layer, LayerSaved& saved);
  // Around its backward pass.
  void fetch(Exec& exec, std::int64_t layer, LayerSaved& saved);
  void backward_done(Exec& exec, std::int64_t layer);

 private:
  // Tensors of one shape.
  struct Kind {
    Activation activation;
    std::string name;
    DType dtype;
    Shape shape;
    View& (*place)(LayerSaved&);
    bool of_experts = false;
  };
  bool leaves(const Kind& kind, std::int64_t layer) const;
  // body(kind, its stash) for all kinds of which the layer's leaves the device.
  template <class Body>
  void for_each_leaving(std::int64_t layer, const Body& body);

  const ActivationPolicy& policy_;
  const ModelConfig& config_;
  std::vector<Kind> kinds_;
  std::map<std::size_t, LayerStash> stashes_;  // by the kind's number
};

}  // namespace inlay::model
