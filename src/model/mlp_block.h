#pragma once

#include "model/activations.h"
#include "model/config.h"
#include "weights/dense.h"

// Residual addition, norm, gate/up product, SwiGLU, down product, residual addition. Rows are worked off in tiles: what
// is not kept exists for one tile only, so memory grows with the tile and not with the text.
namespace inlay::model {

using backend::Exec;

struct MlpParameters {
  weights::Parameter norm, gate_up, down;
  weights::Parameter gate_up_bias, down_bias;  // empty shape where the model has none
};

class MlpBlock {
 public:
  MlpBlock(Exec& exec, const ModelConfig& config, MlpParameters& parameters, const weights::WeightFactory& make_weight);

  struct Saved {
    View residual, norm, gate_up;
  };

  // residual holds attention's delta and becomes x + delta; out = residual + mlp(norm(residual)).
  void forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
               Saved& saved);
  // grad holds dL/dout and becomes dL/d(residual).
  void backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved);

 private:
  void project(Exec& exec, View gate_up, ConstView norm);

  const ModelConfig& config_;
  MlpParameters& parameters_;
  std::unique_ptr<ops::Linear> gate_up_, down_;
};

}  // namespace inlay::model
