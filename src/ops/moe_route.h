#pragma once

#include "ops/check.h"

// The router of a mixture of experts: which experts a token goes to, and how much each of them counts.
// logits fp32 [T, E]; experts int32 [T, k], the k largest logits of a token, larger ones first, equal ones by index;
// weights fp32 [T, k].
namespace inlay::ops {

inline constexpr std::int64_t most_experts = 1024, most_choices = 32;

enum class RouteWeights : std::uint8_t {
  softmax_of_chosen,  // over the k chosen logits: they sum to 1 (softmax over all and then divided by its sum, the
                      // same)
  chosen_of_softmax,  // over all logits, of which k are taken as they are
};

void moe_route(Exec& exec, View experts, View weights, ConstView logits, RouteWeights kind);

// The load-balancing loss of a batch: factor · E · Σ_e f_e · P_e, where over all tokens of all layers f_e is how many
// times expert e was chosen, and P_e the sum of its softmax probabilities, each divided by the number of rows
// (tokens · layers). Gradients flow through P alone.
struct Balance {
  View assigned;     // int32 [E]: how often each was chosen
  View probability;  // fp32 [E]: Σ softmax
};
// += the rows of these logits, in a fixed order.
void moe_balance_add(Exec& exec, const Balance& balance, ConstView logits, ConstView experts);
// loss (fp32 [1]) += factor · E / rows² · Σ_e assigned · probability.
void moe_balance_loss(Exec& exec, View loss, const Balance& balance, double rows, double factor);

struct RouteGrads {
  ConstView dweights;        // fp32 [T, k]
  ConstView assigned;        // of the whole batch; absent: no load-balancing loss
  float balance_factor = 0;  // factor · E / rows²
};
// dlogits (fp32 or bf16 [T, E]) =; experts and logits as in the forward pass.
void moe_route_backward(Exec& exec, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// scratch: fp32 [at least 1 block of rows, E] for partial sums.
namespace cpu {
void moe_route(Exec& exec, View experts, View weights, ConstView logits, RouteWeights kind);
void moe_balance_add(Exec& exec, const Balance& balance, ConstView logits, ConstView experts, View scratch);
void moe_balance_loss(Exec& exec, View loss, const Balance& balance, float scale);
void moe_route_backward(Exec& exec, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind);
}  // namespace cpu

namespace cuda {
void moe_route(Exec& exec, View experts, View weights, ConstView logits, RouteWeights kind);
void moe_balance_add(Exec& exec, const Balance& balance, ConstView logits, ConstView experts, View scratch);
void moe_balance_loss(Exec& exec, View loss, const Balance& balance, float scale);
void moe_route_backward(Exec& exec, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind);
}  // namespace cuda

}  // namespace inlay::ops
