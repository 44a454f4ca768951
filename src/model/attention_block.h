#pragma once

#include <array>

#include "model/activations.h"
#include "model/attention_text.h"
#include "model/block_answer.h"
#include "model/config.h"
#include "model/device_batch.h"
#include "model/kept_codes.h"
#include "ops/attention/attention.h"
#include "ops/attention/decode.h"
#include "ops/rope.h"
#include "weights/weight.h"

// Norm, q/k/v product, rotation, attention, output product, and what the model does to the answer. The residual
// addition that follows belongs to the MLP block, which fuses it with its norm.
namespace inlay::model {

struct AttentionParameters {
  weights::Parameter norm, qkv, output;      // norm, too, has an empty shape where the model has none
  weights::Parameter qkv_bias, output_bias;  // empty shape where the model has none
  weights::Parameter q_norm, k_norm;
  weights::Parameter sinks;  // a logit beside every head's scores
  weights::Parameter output_norm;
};

// What one step gives to all layers.
struct LayerContext {
  const DeviceBatch& batch;
  std::array<ConstView, 2> rope_tables;  // the model's, and its local one
  ConstView head_bias;                   // of the attention's rule, where it wants one
  bool deterministic_attention = true;
};

struct LayerCache;  // model/decoding.h

class AttentionBlock {
 public:
  AttentionBlock(Exec& exec, const ModelConfig& config, const LayerConfig& layer, AttentionParameters& parameters,
                 const weights::WeightFactory& make_weight);

  // Kept tensors; those the policy does not keep are absent between forward and backward.
  struct Saved {
    View norm, qkv, out, lse;
    KeptCodes norm_codes;  // in the place of norm
    View answer;           // of the output product, where the model norms it
  };

  // delta = attention(norm(x)); keeps what the policy says. Attention's results go where `saved` has them already, for
  // a policy that takes them off the device.
  void forward(Exec& exec, View delta, ConstView x, const LayerContext& context, const LayerPolicy& policy,
               Saved& saved);
  // forward for tokens that stand in a cache: their keys and values join it, and they attend to what it holds by then.
  void decode(Exec& exec, View delta, ConstView x, const LayerContext& context, const LayerCache& cache,
              const ops::CachePlaces& places);
  // Brings back in scratch what was not kept and the backward pass needs.
  void recompute(Exec& exec, ConstView x, const LayerContext& context, Saved& saved);
  // From the output product on: how the residual stream is brought back.
  void output(Exec& exec, View delta, const Saved& saved);
  // grad holds dL/d(delta) = dL/d(residual) and receives += dL/dx through the norm.
  void backward(Exec& exec, View grad, ConstView x, const LayerContext& context, const Saved& saved);

 private:
  ConstView normed(Exec& exec, ConstView x);  // x itself where the model has no norm there
  // norm may be absent where its codes are given.
  void project(Exec& exec, View qkv, ConstView norm, const LayerContext& context, const ops::Fp8Forms* codes = nullptr);
  void multiply_out(Exec& exec, View answer, const Saved& saved);
  void rotate(Exec& exec, View qk, const LayerContext& context, ops::Rotation rotation);
  // Queries or keys as their norm sees them: by head, or all of a token at once.
  View norm_rows(View part, std::int64_t heads) const;
  // Queries and keys as attention reads them: in qkv itself, or normed copies in scratch where the model norms them.
  View rotated(Exec& exec, View qkv, const LayerContext& context);
  void attend(Exec& exec, View rotated, const LayerContext& context, const Saved& saved);
  ops::AttentionTensors tensors(View rotated, const Saved& saved) const;
  ops::AttentionSpec spec(const LayerContext& context) const;
  float scale() const;
  ops::NormSpec norm_spec() const { return {config_.norm_eps, config_.norm_offset}; }

  const ModelConfig& config_;
  LayerConfig layer_;
  AttentionParameters& parameters_;
  std::unique_ptr<weights::Weight> qkv_, output_;
  BlockAnswer answer_;
  std::shared_ptr<const ops::AttentionRule> rule_;  // absent: causal, within the layer's window
};

}  // namespace inlay::model
