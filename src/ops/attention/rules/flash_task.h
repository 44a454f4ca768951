#pragma once

// What the kernels of attention by a rule are told. Compiled at run time too: no headers.
namespace inlay::ops::flash {

struct Tokens {  // bf16 [tokens, heads, head size], strides in elements
  unsigned short* data;
  long long token_stride, head_stride;
};

struct Task {
  Tokens q, k, v, out, dout, dq, dk, dv;
  float* lse;          // [tokens, heads], rows lse_stride apart
  const float* delta;  // [tokens, heads]: dout · out
  long long lse_stride;
  const int* cu_seqlens;
  const int* prefix_lengths;  // of every document, or null
  const float* head_bias;     // of every head, or null
  int documents, heads, kv_heads;
  float scale;
};

// Blocks of 256 threads: two warpgroups of 64 rows each.
constexpr int threads = 256, block_rows = 128;

template <int rows, int columns>  // a tile in shared memory: panels of 64 columns, lines of 128 bytes
constexpr int tile_bytes = rows * 128 * ((columns + 63) / 64);

// The other side's tiles are as wide as registers and shared memory allow, and go through so many stages of the latter.
// Heads of 256 leave room for one gradient at a time: dk and dv are then kernels of their own.
template <int head_size>
struct Tiling {
  static constexpr bool wide = head_size > 128, gradients_apart = wide;
  static constexpr int forward_keys = wide ? 64 : 128, forward_stages = 2;
  static constexpr int query_gradient_columns = wide ? 32 : 128, query_gradient_stages = 2;
  static constexpr int key_gradient_columns = wide ? 32 : 64, key_gradient_stages = wide ? 2 : 3;
  static constexpr int narrowest_tile = wide ? 32 : 64;

  // Shared memory beside the list of tiles, which takes two bytes per tile of the other side.
  static constexpr int forward_bytes =
      tile_bytes<block_rows, head_size> + 2 * forward_stages * tile_bytes<forward_keys, head_size>;
  static constexpr int query_gradient_bytes =
      2 * tile_bytes<block_rows, head_size> + 2 * query_gradient_stages * tile_bytes<query_gradient_columns, head_size>;
  static constexpr int key_gradient_bytes =
      2 * tile_bytes<block_rows, head_size> +
      2 * key_gradient_stages * (tile_bytes<key_gradient_columns, head_size> + key_gradient_columns * 4);
};

}  // namespace inlay::ops::flash
