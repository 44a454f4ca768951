#pragma once

#include <functional>
#include <optional>

#include "model/activations.h"
#include "model/layer_stash.h"

namespace inlay::model {

// The residual stream between the layers of one micro-batch, from forward to backward: the input of layer l is number
// l, and the last layer's output comes after them. Each is where its layer's policy says.
class LayerInputs {
 public:
  LayerInputs(Exec& exec, const ActivationPolicy& policy, std::int64_t layers, DType dtype, Shape shape,
              StashPlace* place);

  // For the forward pass: memory for stream number i; it was written; layer i has read it.
  View open(Exec& exec, std::int64_t i);
  void written(Exec& exec, std::int64_t i);
  void forward_done(Exec& exec, std::int64_t i);

  // For the backward pass. Brings layer i's input back; where it is not stored anywhere, remake(i - 1, out, in) must
  // run layer i - 1 again.
  using Remake = std::function<void(std::int64_t layer, View out, ConstView in)>;
  View fetch(Exec& exec, std::int64_t i, const Remake& remake);
  void backward_done(Exec& exec, std::int64_t i);

 private:
  Storage storage(std::int64_t i) const;
  void prefetch_below(Exec& exec, std::int64_t i);

  const ActivationPolicy& policy_;
  std::int64_t layers_;
  DType dtype_;
  Shape shape_;
  std::vector<View> kept_;
  std::optional<LayerStash> stash_;
};

}  // namespace inlay::model
