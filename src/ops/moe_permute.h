#pragma once

#include "ops/fp8.h"

// Rows sorted by the expert they go to, and back. A token that goes to k experts has k pairs (token, choice), and each
// pair a row of its own in the sorted order; the rows of one expert are neighbours, in the order of their tokens.
namespace inlay::ops {

struct ExpertOrder {
  View offsets;  // int32 [E + 1]: the rows of expert e are offsets[e] .. offsets[e + 1] - 1
  View pairs;    // int32 [T · k]: which pair (token · k + choice) a row belongs to
  View rows;     // int32 [T, k]: which row a pair has
};

// A stable counting sort; experts int32 [T, k], each in [0, E).
void moe_sort(Exec& exec, const ExpertOrder& order, ConstView experts);

// to[row] = from[token of the row]; to [T · k, H], from [T, H].
void moe_gather(Exec& exec, View to, ConstView from, const ExpertOrder& order);

// The same as an operand of products in fp8, every form that is there. room [T · k, H] holds anything afterwards.
void moe_gather_fp8(Exec& exec, const Fp8Forms& to, View room, ConstView from, const ExpertOrder& order);

// The other way: what the rows of a token add up to, choice after choice, in fp32.
// out[t] = residual[t] + Σ_j weights[t, j] · (y[row of (t, j)] + bias[experts[t, j]]); out may be residual itself.
struct Combine {
  ConstView y;         // [T · k, H]
  ConstView weights;   // fp32 [T, k]; absent: 1
  ConstView bias;      // [E, H] in y's dtype; absent: none
  ConstView experts;   // int32 [T, k], where there is a bias
  ConstView residual;  // [T, H]; absent: none
};
void moe_combine(Exec& exec, View out, const Combine& combine, const ExpertOrder& order);

// Its gradient, as far as it goes before y is known again: dy[row of (t, j)] = dout[t], not yet multiplied by the
// weight (expert_glu_backward does that, and so finds the weight's own gradient), and dweights[t, j] = bias[experts[t,
// j]] · dout[t], 0 without a bias.
void moe_combine_backward(Exec& exec, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order);

// The same with dy as an operand of products in fp8, every form that is there. room, of dy's shape, holds anything
// afterwards.
void moe_combine_backward_fp8(Exec& exec, const Fp8Forms& dy, View room, View dweights, ConstView dout,
                              const Combine& combine, const ExpertOrder& order);

// What has a row of its own: every row in the sorted order, or every token, whose pairs then share it.
enum class RowsOf : std::uint8_t { order, tokens };

// dbias[e] (fp32 [E, N]) = or += Σ over the rows of e of weights[pair] · dy[row], in a fixed order; absent weights: 1.
void moe_bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows = RowsOf::order);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void moe_sort(Exec& exec, const ExpertOrder& order, ConstView experts);
void moe_gather(Exec& exec, View to, ConstView from, const ExpertOrder& order);
void moe_combine(Exec& exec, View out, const Combine& combine, const ExpertOrder& order);
void moe_combine_backward(Exec& exec, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order);
void moe_bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows);
}  // namespace cpu

// scratch of moe_sort: int32 [blocks of sort_block pairs, E]; of moe_bias_backward: fp32 [bias_slices, E, N].
inline constexpr std::int64_t sort_block = 1024, bias_slices = 4;

namespace cuda {
void moe_sort(Exec& exec, const ExpertOrder& order, ConstView experts, View scratch);
void moe_gather(Exec& exec, View to, ConstView from, const ExpertOrder& order);
void moe_gather_fp8(Exec& exec, const Fp8Forms& to, ConstView from, const ExpertOrder& order);
void moe_combine(Exec& exec, View out, const Combine& combine, const ExpertOrder& order);
// dy may be absent.
void moe_combine_backward(Exec& exec, View dy, View dweights, ConstView dout, const Combine& combine,
                          const ExpertOrder& order);
void moe_bias_backward(Exec& exec, View dbias, Grad mode, ConstView dy, ConstView weights, const ExpertOrder& order,
                       RowsOf rows, View scratch);
}  // namespace cuda

}  // namespace inlay::ops
