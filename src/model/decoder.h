#pragma once

#include <memory>
#include <vector>

#include "model/attention_text.h"
#include "model/fp8_options.h"
#include "model/layer_inputs.h"
#include "model/layer_results.h"
#include "model/objective.h"
#include "model/parameters.h"
#include "ops/attention/decode.h"
#include "weights/kind.h"
#include "weights/traffic.h"

namespace inlay::model {

// What is learned, made over the memory of a decoder's Exec.
class ObjectiveKind {
 public:
  virtual ~ObjectiveKind() = default;
  virtual std::unique_ptr<Objective> make(Exec& exec, const LossSettings& settings) const = 0;
};

struct DecoderOptions {
  DType compute = DType::f32;
  std::optional<Fp8Options> fp8;
  bool training = false;  // gradients and master weights are allocated
  ActivationPolicy policy = ActivationPolicy::keep_all();
  std::int64_t mlp_tile = 0;  // rows a tile; 0: all at once
  LossSettings loss;
  std::shared_ptr<const ObjectiveKind> objective;  // absent: the next token
  std::int64_t max_positions = 0;                  // longest document that will come
  StashPlace stash;                                // where what the policy takes off the device goes
  std::int64_t host_layers = 0;  // the last so many layers' matrices, and their training state, live on the host
  bool deterministic_attention = true;
  std::shared_ptr<const weights::WeightPlan> weights;  // absent: everything trains, as a whole
  parallel::Mesh mesh;                                 // the processes that train it together
};

class KvCache;  // model/decoding.h

// Tokens, int32 [n] on the device, and where they stand in a cache.
struct DecodeRows {
  ConstView tokens;
  ops::CachePlaces places;
  // Where the rows are the beginnings of texts, one after the other, and nothing else: their offsets, as in
  // DeviceBatch.
  ConstView cu_seqlens;
  std::vector<std::int32_t> host_cu_seqlens;
};

// A decoder: embedding, layers, final norm, head. Owns the parameters and their memory in the Exec's arena; the
// activations of a step live there only during the step.
class Decoder {
 public:
  Decoder(Exec& exec, const ModelConfig& config, const DecoderOptions& options);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }
  ModelParameters& parameters() { return parameters_; }
  weights::WeightTraffic* traffic() { return traffic_; }      // null where everything stays where it is
  weights::ResidentWeights* resident() { return resident_; }  // null where it does not
  // The group of weights that a parameter is used with (weights/access.h).
  std::int64_t group_of(const weights::Parameter& parameter) const;
  // Bytes that a step has put on a disk.
  std::uint64_t disk_bytes() const { return stash_place_.bytes; }
  const Objective& objective() const { return *objective_; }
  // Whose prediction the objective learns as well: another decoder's, which must outlive this one; this one's without
  // what it has learned, where nothing but adapters trains (learns_beside); or this one's as it is, which makes sense
  // where batches show it other prompts (PackedBatch::others).
  void set_other(Decoder& other) { other_ = &other; }
  void set_base_as_other();
  void set_itself_as_other() { other_ = this; }
  // Whether its base model is all there still, whatever it learns.
  bool learns_beside();
  const std::vector<weights::Weight*>& weights() const { return weights_; }  // of all matrices
  // Everything the optimizer works on: parameters that train, and what weights train in their place.
  void for_each_trained(const std::function<void(weights::Parameter&)>& visit);
  // All weights were loaded. Null: no weight needs tensors.
  void start(Exec& exec, const weights::StartTensors* tensors);
  // Around the optimizer's step.
  void finish_gradients(Exec& exec);
  void update_weights(Exec& exec);

  // The first call after this overwrites the gradients, later ones add to them. Randomness depends on the step, and on
  // the micro-batch's number in it: on other processes others come before.
  void begin_step(Exec& exec, std::int64_t step = 0, std::int64_t first_micro_batch = 0);
  // Forward and backward of one micro-batch: gradients of Σ loss / divisor, into the parameters. After the last of a
  // step they go to whoever needs them.
  void forward_backward(Exec& exec, const PackedBatch& batch, const BatchWeight& divisor, bool last = true);
  // Loss alone, divided by the divisor.
  void evaluate(Exec& exec, const PackedBatch& batch, const BatchWeight& divisor);
  // What forward_backward and evaluate have summed since begin_step. Waits for the device.
  LossSums read_loss(Exec& exec);

  // All batches through the model layer by layer, so that what is observed at a layer's weights can be used up before
  // the next one begins. Keeps the residual stream of all batches; gradients are not computed.
  struct LayerObserver {
    virtual ~LayerObserver() = default;
    virtual void begin_layer(Exec&, std::int64_t) {}
    virtual void layer_output(Exec&, std::int64_t, ConstView /*x*/, ConstView /*y*/) {}
    virtual void end_layer(Exec&, std::int64_t) {}
    virtual void begin_head(Exec&) {}
    virtual void final_hidden(Exec&, ConstView) {}
    virtual void end_head(Exec&) {}
  };
  void observe(Exec& exec, const std::vector<PackedBatch>& batches, LayerObserver& observer);

  // Every position's own loss, 0 where the target does not count. Waits for the device.
  std::vector<float> row_losses(Exec& exec, const PackedBatch& batch);

  // Logits of the given rows of a batch, fp32, row after row. For inspection, not for training.
  std::vector<float> logits(Exec& exec, const PackedBatch& batch, const std::vector<std::int32_t>& rows);

  // The logits of what follows each document's last token, fp32 [documents, vocab].
  void next_logits(Exec& exec, View logits, const PackedBatch& batch);

  // Tokens that stand behind what the cache holds of their sequences; it receives them. logits, fp32 [n, vocab], become
  // those of what follows the picked rows (int32 [n], ascending), or all of them; absent where nobody asks.
  void decode(Exec& exec, View logits, const DecodeRows& rows, const KvCache& cache, ConstView picked = {});

 private:
  struct Layer {
    Layer(Exec& exec, const ModelConfig& config, const LayerConfig& layer, LayerParameters& parameters,
          const weights::WeightFactory& make_weight, const RouterBalance& balance);
    AttentionBlock attention;
    std::unique_ptr<FeedForward> mlp;
  };
  void begin_pass(bool training, bool base = false);
  // Matrices have changed: copies of them in fp8 are to be made again.
  void forget_copies();
  void place_parameters(const weights::WeightPlan& plan);
  void open_traffic(Exec& exec);
  // Around the use of the final norm and the head.
  void acquire_head(Exec& exec, weights::Pass pass);
  void release_head(Exec& exec, weights::Pass pass);
  weights::Weight& head() { return head_ != nullptr ? *head_ : *embedding_; }
  LayerContext context(const DeviceBatch& batch) const;
  DeviceBatch to_device(Exec& exec, const PackedBatch& batch) const;
  // The embeddings of tokens as the first layer sees them.
  void embed(Exec& exec, View x, ConstView tokens);
  // The residual stream as the head sees it.
  void final_hidden(Exec& exec, View hidden, ConstView x);
  // fp32, after what the model does to them.
  void head_logits(Exec& exec, View logits, ConstView hidden);
  ops::NormSpec norm_spec() const { return {config_.norm_eps, config_.norm_offset}; }
  float embedding_scale() const;
  // x_{l+1} from x_l, keeping what the policy says.
  void forward_layer(Exec& exec, std::size_t layer, View out, ConstView x, const LayerContext& context,
                     const LayerPolicy& policy, LayerSaved& saved);
  // The same for tokens over a cache.
  void decode_layer(Exec& exec, std::size_t layer, View out, ConstView x, const LayerContext& context,
                    const KvCache& cache, const ops::CachePlaces& places);
  void backward_layer(Exec& exec, std::size_t layer, View grad, ConstView x, const LayerContext& context,
                      LayerSaved& saved);
  // A layer's output once more, where it was not kept.
  void remake_input(Exec& exec, std::int64_t layer, View out, ConstView in, const LayerContext& context);
  // The final hidden state without keeping anything, in scratch.
  View forward_only(Exec& exec, const DeviceBatch& batch, bool base = false);
  // The other model's final hidden state of a batch's rows, kept; absent where there is none.
  View other_hidden(Exec& exec, const PackedBatch& batch);
  // What an objective gets of them; the other's head is acquired here, and released where the objective is done.
  ops::OtherModel open_other(Exec& exec, ConstView hidden, const DeviceBatch& batch);
  void close_other(Exec& exec);
  // Around the forward pass of a micro-batch: its load-balancing loss counts as its labels do.
  void begin_balance(Exec& exec);
  void finish_balance(Exec& exec, const PackedBatch& batch, double normalizer);
  HeadPass head_pass(View hidden, const DeviceBatch& batch, const BatchWeight& divisor);

  ModelConfig config_;
  DecoderOptions options_;
  ModelParameters parameters_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<weights::Weight> embedding_, head_;  // the embedding is the head too where they are tied
  std::vector<weights::Weight*> weights_;
  weights::PassKey pass_;
  std::unique_ptr<weights::WeightAccess> access_;
  weights::WeightTraffic* traffic_ = nullptr;
  weights::ResidentWeights* resident_ = nullptr;
  StashPlace stash_place_;
  std::array<View, 2> rope_tables_;  // the second where the model has a local rotation
  View head_bias_;
  std::unique_ptr<Objective> objective_;
  Decoder* other_ = nullptr;
  bool base_is_other_ = false;  // other_ is this decoder, without what it has learned
  RouterBalance balance_;       // of the micro-batch at hand
};

}  // namespace inlay::model
