#pragma once

#include "model/config.h"
#include "model/feed_forward.h"
#include "ops/expert_glu.h"
#include "ops/moe_route.h"
#include "weights/experts.h"

namespace inlay::model {

struct MoeParameters {
  weights::Parameter norm, router;
  std::vector<weights::Parameter> gate_up, down;  // of every expert
  weights::Parameter router_bias;                 // empty shape where the model has none, as the following
  weights::Parameter gate_up_bias, down_bias;     // [experts, ...]
};

// The load-balancing loss of a micro-batch, over all its layers: it is known when the forward pass is through, and the
// backward pass takes it up.
struct RouterBalance {
  ops::Balance sums;      // absent where the model has no such loss
  bool counting = false;  // the forward pass adds to the sums
  float factor = 0;       // of the gradient: the loss's factor · experts / rows²
};

// A mixture of experts: each token goes to a few of them, as the router says, and adds up what they answer, weighted.
class MoeBlock final : public FeedForward {
 public:
  MoeBlock(Exec& exec, const ModelConfig& config, MoeParameters& parameters, const weights::WeightFactory& make_weight,
           const RouterBalance& balance);

  void forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
               Saved& saved) override;
  void backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) override;

 private:
  // The routing of a tile: scratch, or rows of what was kept.
  struct Routing {
    View experts, weights;
    ops::ExpertOrder order;
  };
  Routing take_routing(Exec& exec, std::int64_t begin, std::int64_t end, const Saved& saved) const;
  ops::Call call_of(const Routing& routing, std::int64_t begin) const;
  // sorted = the rows of norm that the experts see, and what their products read of it in fp8; where they read nothing
  // else, sorted holds anything.
  void gather(Exec& exec, View sorted, const ops::Fp8Forms& forms, ConstView norm, const Routing& routing) const;
  // From gate and up on, with the activation in scratch.
  void multiply_down(Exec& exec, View answers, ConstView gate_up, const Routing& routing, const ops::Call& call);
  View router_logits(Exec& exec, ConstView norm, std::int64_t row);
  ops::ExpertRows rows(const Routing& routing) const;
  ops::RouteWeights weighting() const;
  void backward_router(Exec& exec, View dnorm, ConstView dweights, ConstView norm, ConstView logits,
                       const Routing& routing, std::int64_t row);

  const ModelConfig& config_;
  MoeParameters& parameters_;
  const RouterBalance& balance_;
  std::unique_ptr<weights::Weight> router_;
  weights::ExpertWeights gate_up_, down_;
};

}  // namespace inlay::model
