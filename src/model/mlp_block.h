#pragma once

#include "model/config.h"
#include "model/feed_forward.h"

namespace inlay::model {

struct MlpParameters {
  weights::Parameter norm, gate_up, down;
  weights::Parameter gate_up_bias, down_bias;  // empty shape where the model has none
};

// Residual addition, norm, gate/up product, SwiGLU, down product, residual addition.
class MlpBlock final : public FeedForward {
 public:
  MlpBlock(Exec& exec, const ModelConfig& config, MlpParameters& parameters, const weights::WeightFactory& make_weight);

  void forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
               Saved& saved) override;
  void backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) override;

 private:
  void project(Exec& exec, View gate_up, ConstView norm, std::int64_t row);
  // out = swiglu(gate_up) · downᵀ, without its bias; in the caller's scratch.
  void project_down(Exec& exec, View out, ConstView gate_up, std::int64_t row);
  // dnorm, and the gradients of both matrices and their biases, from dout. The plain one overwrites gate_up.
  void backward_plainly(Exec& exec, View dnorm, ConstView dout, View gate_up, ConstView norm, std::int64_t row);
  void backward_in_fp8(Exec& exec, View dnorm, ConstView dout, ConstView gate_up, ConstView norm, std::int64_t row);

  const ModelConfig& config_;
  MlpParameters& parameters_;
  std::unique_ptr<weights::Weight> gate_up_, down_;
};

}  // namespace inlay::model
