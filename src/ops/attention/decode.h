#pragma once

#include "ops/check.h"

// Attention of new tokens over the keys and values cached so far, their own included. Each row is a token that stands
// in a sequence of the cache, at a position, and sees the positions up to its own: one token of every sequence, or many
// of one. Where they stand is on the device, so that a step can be recorded once and done again. Query head h reads
// key/value head h / (heads / kv_heads), as in ops/attention/attention.h.
//
// The cache is [sequences, kv_heads, capacity, D]: what one head of one sequence has seen lies in one piece, so that a
// thread (or a block of them) reads on and on, where positions outside heads would make it jump from row to row.
namespace inlay::ops {

// Where n tokens stand: int32 [n] each, within the cache.
struct CachePlaces {
  ConstView sequences, positions;
};

struct DecodeSpec {
  float scale = 1.0f;  // multiplies q·k
  CachePlaces places;
  std::int64_t window = 0;  // of positions seen, the token's own included; 0: unlimited
  ConstView sinks;          // [heads] in q's dtype, as in ops/attention/attention.h; absent: none
  float softcap = 0;        // scores become softcap · tanh(score / softcap); 0: they stay
};

// out, q [n, heads, D]; k, v [sequences, kv_heads, capacity, D]. out = attention of q over what its places see.
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec);

// Keys and values of new tokens, [n, kv_heads, D] each, take their places in the cache.
struct CacheRows {
  ConstView k, v;
};
void fill_cache(Exec& exec, View keys, View values, const CacheRows& rows, const CachePlaces& places);

// Every position is one further on.
void advance(Exec& exec, View positions);

// The sequences' keys are divided among so many blocks of a GPU, whose answers are then put together.
std::int64_t decode_splits(std::int64_t capacity);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
// scores: scratch, fp32 [n, heads, capacity rounded up to a multiple of 16].
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View scores);
void fill_cache(Exec& exec, View keys, View values, const CacheRows& rows, const CachePlaces& places);
void advance(Exec& exec, View positions);
}  // namespace cpu

namespace cuda {
// parts: scratch, fp32 [n, heads, splits, D + 2]; absent where there is one.
void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View parts);
void fill_cache(Exec& exec, View keys, View values, const CacheRows& rows, const CachePlaces& places);
void advance(Exec& exec, View positions);
}  // namespace cuda

}  // namespace inlay::ops
