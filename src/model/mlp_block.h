#pragma once

#include "model/block_answer.h"
#include "model/config.h"
#include "model/feed_forward.h"
#include "ops/swiglu.h"

namespace inlay::model {

struct MlpParameters {
  weights::Parameter norm, gate_up, down;      // norm, too, has an empty shape where the model has none
  weights::Parameter gate_up_bias, down_bias;  // empty shape where the model has none
  weights::Parameter output_norm;
};

// Residual addition, norm, gate/up product, SwiGLU or GeGLU, down product, what the model does to the answer, residual
// addition.
class MlpBlock final : public FeedForward {
 public:
  MlpBlock(Exec& exec, const ModelConfig& config, MlpParameters& parameters, const weights::WeightFactory& make_weight);

  void forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
               Saved& saved) override;
  void backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) override;

 private:
  void project(Exec& exec, View gate_up, ConstView norm, const ops::Call& call);
  void multiply_down(Exec& exec, View answer, ConstView gate_up, std::int64_t row);
  // din = or += the gradient of the gate/up product's input, and the gradients of both matrices and their biases, from
  // that of the answer. `call` is the product's: its first row, and its input's codes where these were kept. The plain
  // one overwrites gate_up.
  struct InputGrad {
    View din;
    backend::Grad mode;
  };
  void backward_plainly(Exec& exec, const InputGrad& to, ConstView danswer, View gate_up, ConstView input,
                        const ops::Call& call);
  void backward_in_fp8(Exec& exec, const InputGrad& to, ConstView danswer, ConstView gate_up, ConstView input,
                       const ops::Call& call);
  ops::Gate gate() const;
  ops::NormSpec norm_spec() const { return {config_.norm_eps, config_.norm_offset}; }

  const ModelConfig& config_;
  MlpParameters& parameters_;
  std::unique_ptr<weights::Weight> gate_up_, down_;
  BlockAnswer answer_;
};

}  // namespace inlay::model
