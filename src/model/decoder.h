#pragma once

#include <memory>
#include <vector>

#include "model/parameters.h"
#include "ops/fused_linear_ce.h"
#include "weights/access.h"

namespace inlay::model {

struct DecoderOptions {
  DType compute = DType::f32;
  bool training = false;  // gradients and master weights are allocated
  ActivationPolicy policy = ActivationPolicy::keep_all();
  std::int64_t mlp_tile = 0;       // rows a tile; 0: all at once
  std::int64_t loss_chunk = 0;     // rows of logits held at once; 0: chosen by the op
  std::int64_t max_positions = 0;  // longest document that will come
  bool deterministic_attention = true;
};

// Sums over a batch's valid labels, on the host.
struct LossSums {
  double loss = 0;  // Σ cross entropy (already divided where a normalizer was given)
  std::int64_t correct = 0;
};

// A dense decoder: embedding, layers, final norm, head. Owns the parameters and their memory in the Exec's arena; the
// activations of a step live there only during the step.
class Decoder {
 public:
  Decoder(Exec& exec, const ModelConfig& config, const DecoderOptions& options);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }
  ModelParameters& parameters() { return parameters_; }

  // The first call after this overwrites the gradients, later ones add to them.
  void begin_step(Exec& exec);
  // Forward and backward of one micro-batch: gradients of Σ loss / normalizer, into the parameters.
  void forward_backward(Exec& exec, const PackedBatch& batch, double normalizer);
  // Loss alone, divided by the normalizer.
  void evaluate(Exec& exec, const PackedBatch& batch, double normalizer);
  // What forward_backward and evaluate have summed since begin_step. Waits for the device.
  LossSums read_loss(Exec& exec);

  // Every position's own loss, 0 where the target does not count. Waits for the device.
  std::vector<float> row_losses(Exec& exec, const PackedBatch& batch);

  // Logits of the given rows of a batch, fp32, row after row. For inspection and sampling, not for training.
  std::vector<float> logits(Exec& exec, const PackedBatch& batch, const std::vector<std::int32_t>& rows);

 private:
  struct Layer {
    Layer(const ModelConfig& config, const LayerConfig& layer, LayerParameters& parameters)
        : attention(config, layer, parameters.attention), mlp(config, parameters.mlp) {}
    AttentionBlock attention;
    MlpBlock mlp;
  };
  struct LayerSaved {
    std::size_t mark = 0;  // the arena's bottom before this layer kept anything
    AttentionBlock::Saved attention;
    MlpBlock::Saved mlp;
  };

  LayerContext context(const DeviceBatch& batch) const;
  // x_{l+1} from x_l, keeping what the policy says.
  void forward_layer(Exec& exec, std::size_t layer, View out, ConstView x, const LayerContext& context,
                     const ActivationPolicy& policy, LayerSaved& saved);
  void backward_layer(Exec& exec, std::size_t layer, View grad, ConstView x, const LayerContext& context,
                      LayerSaved& saved);
  // The final hidden state without keeping anything, in scratch.
  View forward_only(Exec& exec, const DeviceBatch& batch);
  void head_loss(Exec& exec, View hidden, const DeviceBatch& batch, double normalizer, bool gradients);

  ModelConfig config_;
  DecoderOptions options_;
  ModelParameters parameters_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<weights::DenseWeight> head_;
  std::unique_ptr<weights::WeightAccess> access_ = std::make_unique<weights::ResidentWeights>();
  View rope_table_, loss_, correct_;
};

}  // namespace inlay::model
