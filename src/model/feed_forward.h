#pragma once

#include <algorithm>

#include "model/activations.h"
#include "model/kept_codes.h"
#include "weights/weight.h"

namespace inlay::model {

// What follows attention in a layer: residual addition, norm, the MLP or the experts, residual addition. Rows are
// worked off in tiles: what is not kept exists for one tile only, so memory grows with the tile and not with the text.
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Kept tensors; those the policy does not keep are absent between forward and backward. gate_up may be given: it
  // leaves the device between them.
  struct Saved {
    View residual, norm, gate_up;
    KeptCodes norm_codes;   // in the place of norm
    View answer;            // before its norm, where the model has one
    View experts, weights;  // kept beside gate_up, whose rows are in the experts' order
  };

  // residual holds attention's delta and becomes x + delta; out = residual + f(norm(residual)).
  virtual void forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
                       Saved& saved) = 0;
  // grad holds dL/dout and becomes dL/d(residual).
  virtual void backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) = 0;

 protected:
  // Calls body(begin, end) for each tile of rows; the last one may be smaller. tile 0 means all rows at once.
  template <class Body>
  static void for_each_tile(std::int64_t rows, std::int64_t tile, const Body& body) {
    const std::int64_t step = tile > 0 ? tile : std::max<std::int64_t>(rows, 1);
    for (std::int64_t begin = 0; begin < rows; begin += step) body(begin, std::min(begin + step, rows));
  }
};

}  // namespace inlay::model
