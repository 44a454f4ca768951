#pragma once

#include "ops/attention/rules/flash_common.cuh"

// Forward: 128 queries of a head against the tiles of keys that the rule lets them see. While the tensor cores add one
// tile's values, the next tile's scores go through the softmax.
namespace inlay::ops::flash {

// A thread's two queries, as their keys pass by.
struct Softmax {
  float top[2] = {minus_infinity(), minus_infinity()};  // the largest score so far
  float total[2] = {0.0f, 0.0f};                        // of this thread's columns
  float rescale[2];                                     // of what was summed before

  // scores become probabilities relative to the new top; `unit` times a score is a power of two.
  template <int columns>
  __device__ __forceinline__ void step(float (&scores)[columns / 8][4], float unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = top[half];
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        highest = fmaxf(highest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      const float base = highest == minus_infinity() ? 0.0f : highest * unit;  // nothing seen yet: all are 2^-inf
      rescale[half] = exp2_of(top[half] * unit - base);
      top[half] = highest;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[j][i] = exp2_of(fmaf(scores[j][i], unit, -base));
          sum += scores[j][i];
        }
      }
      total[half] = total[half] * rescale[half] + sum;
    }
  }
};

// What the rule makes of q · k; where nothing is seen, minus infinity. Positions are whole numbers that fp32 holds.
template <class Rule, bool partial, int columns>
__device__ __forceinline__ void apply_rule(float (&scores)[columns / 8][4], const Place& place, int query, int key,
                                           float scale) {
  const float first_query = static_cast<float>(query), first_key = static_cast<float>(key);
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float q = first_query + static_cast<float>(i / 2 * 8), k = first_key + static_cast<float>(8 * j + i % 2);
      if constexpr (Rule::scored) scores[j][i] = Rule::score(place, q, k, scores[j][i] * scale);
      if constexpr (partial) {
        if (!(Rule::visible(place, q, k) & (k < place.length))) scores[j][i] = minus_infinity();
      }
    }
  }
}

template <class Rule, int head_size>
__device__ __forceinline__ void forward(const Task& task) {
  constexpr int forward_keys = Tiling<head_size>::forward_keys, forward_stages = Tiling<head_size>::forward_stages;
  const DocumentTile tile = find_tile(task, gridDim.x - 1 - blockIdx.x);  // the last queries may see most
  if (tile.empty()) return;
  const int head = blockIdx.y, kv_head = head / (task.heads / task.kv_heads);
  const Lane lane;
  const Place place = place_of(task, tile, head);

  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int stage = tile_bytes<forward_keys, head_size>;
  const unsigned queries = shared_address(memory), keys = queries + tile_bytes<block_rows, head_size>;
  const unsigned values = keys + forward_stages * stage;
  auto* list = reinterpret_cast<unsigned short*>(memory + Tiling<head_size>::forward_bytes);

  fetch_tile<block_rows, head_size>(queries, task.q, head, tile, tile.first);
  const int count = list_tiles<forward_keys>(list, tile.length, [&](int first) {
    return Rule::visible(place, positions(tile.first, block_rows, tile.length),
                         positions(first, forward_keys, tile.length));
  });
  const auto first_of = [&](int i) { return static_cast<int>(list[i] & (partial_bit - 1)) * forward_keys; };
  const auto fetch = [&](int key_tile, int value_tile) {
    if (key_tile < count) {
      fetch_tile<forward_keys, head_size>(keys + key_tile % forward_stages * stage, task.k, kv_head, tile,
                                          first_of(key_tile));
    }
    if (value_tile >= 0 && value_tile < count) {
      fetch_tile<forward_keys, head_size>(values + value_tile % forward_stages * stage, task.v, kv_head, tile,
                                          first_of(value_tile));
    }
    end_fetch();
  };
  fetch(0, -1);
  await_fetches();

  const unsigned left = queries + lane.group * 64 * line_bytes;
  const float unit = Rule::scored ? log2_e : task.scale * log2_e;
  Softmax softmax;
  float sums[head_size / 8][4] = {};
  float scores[forward_keys / 8][4];
  unsigned weights[forward_keys / 16][4];
  const auto weigh = [&](int i) {
    const int query = tile.first + lane.row, key = first_of(i) + lane.column;
    if (list[i] & partial_bit) {
      apply_rule<Rule, true, forward_keys>(scores, place, query, key, task.scale);
    } else if constexpr (Rule::scored) {
      apply_rule<Rule, false, forward_keys>(scores, place, query, key, task.scale);
    }
    softmax.template step<forward_keys>(scores, unit);
    pin(scores);
  };
  if (count > 0) {
    multiply_rows<forward_keys, head_size, block_rows, forward_keys>(scores, left, keys);
    fetch(1, 0);
    await_products<0>();
    pin(scores);
    weigh(0);
    pack<forward_keys>(weights, scores);
  }
  for (int i = 1; i < count; ++i) {
    await_fetches();  // the keys of this tile and the values of the last; all have left the stages before
    multiply_rows<forward_keys, head_size, block_rows, forward_keys>(scores, left, keys + i % forward_stages * stage);
    multiply_columns<head_size, forward_keys>(sums, weights, values + (i - 1) % forward_stages * stage);
    fetch(i + 1, i);
    await_products<1>();
    pin(scores);
    weigh(i);
    await_products<0>();
    pin(sums);
#pragma unroll
    for (int j = 0; j < head_size / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] *= softmax.rescale[e / 2];
    }
    pack<forward_keys>(weights, scores);
  }
  if (count > 0) {
    await_fetches();
    multiply_columns<head_size, forward_keys>(sums, weights, values + (count - 1) % forward_stages * stage);
    await_products<0>();
    pin(sums);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    inverse[half] = total > 0.0f ? 1.0f / total : 0.0f;  // a query that sees nothing gets nothing
    const int query = tile.first + lane.row + 8 * half;
    if (lane.column == 0 && query < tile.length) {
      task.lse[(tile.begin + query) * task.lse_stride + head] =
          total > 0.0f ? softmax.top[half] * unit * ln_2 + logf(total) : minus_infinity();
    }
  }
  write_rows<head_size>(task.out, head, tile, sums, inverse[0], inverse[1]);
}

}  // namespace inlay::ops::flash
