#pragma once

#include "ops/check.h"

// Attention of one new token a sequence over the keys and values cached so far, its own included. All sequences are of
// one length. Query head h reads key/value head h / (heads / kv_heads), as in ops/attention/attention.h.
//
// The cache is [sequences, kv_heads, capacity, D]: what one head of one sequence has seen lies in one piece, so that a
// thread (or a block of them) reads on and on, where positions outside heads would make it jump from row to row.
namespace inlay::ops {

struct DecodeSpec {
  float scale = 1.0f;       // multiplies q·k
  std::int64_t length = 0;  // positions in the cache; the new token is the last of them
  std::int64_t window = 0;  // of positions seen, the token's own included; 0: unlimited
  ConstView sinks;          // [heads] in q's dtype, as in ops/attention/attention.h; absent: none
  float softcap = 0;        // scores become softcap · tanh(score / softcap); 0: they stay
};

// out, q [B, heads, D]; k, v [B, kv_heads, capacity, D]. out = attention of q over the last positions of k and v.
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
// scores: scratch, fp32 [B, heads, length rounded up to a multiple of 16].
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View scores);
}  // namespace cpu

namespace cuda {
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec);
}  // namespace cuda

}  // namespace inlay::ops
