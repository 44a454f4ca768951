#pragma once

#include "ops/attention/rules/flash_common.cuh"

// Backward: P = exp(score − lse), dV = P^T dO, dS = P ∘ (dO V^T − delta) ∘ slope, dQ = scale · dS K, dK = scale · dS^T
// Q. dk and dv of 128 keys run over the heads that read them and over tiles of queries, dq of 128 queries over tiles of
// keys: everything is summed by one block in a fixed order. Of wide heads dk and dv are summed by kernels of their own.
namespace inlay::ops::flash {

// From a score q · k: the probability, and the derivative of the rule's score with the scale left out. lse is in powers
// of two. A query that sees nothing has none (minus infinity), and is in no tile that is seen whole.
template <class Rule, bool partial>
struct PairOf {
  float weight, slope;

  __device__ __forceinline__ PairOf(const Place& place, float q, float k, float product, float scale, float lse) {
    slope = 1.0f;
    if constexpr (Rule::scored) {
      const float score = Rule::score(place, q, k, product * scale, slope);
      weight = exp2_of(fmaf(score, log2_e, -lse));
    } else {
      weight = exp2_of(fmaf(product, scale * log2_e, -lse));
    }
    if constexpr (partial) {
      if (!(Rule::visible(place, q, k) & (q < place.length) & (k < place.length))) weight = slope = 0.0f;
    }
  }
};

__device__ __forceinline__ const float* lse_of(const Task& task, const DocumentTile& tile, int head, int query) {
  return task.lse + (tile.begin + query) * task.lse_stride + head;
}
__device__ __forceinline__ const float* delta_of(const Task& task, const DocumentTile& tile, int head, int query) {
  return task.delta + static_cast<long long>(tile.begin + query) * task.heads + head;
}

// Queries down, keys across: scores become probabilities times the rule's slope. lse is that of the thread's two rows.
template <class Rule, bool partial, int columns>
__device__ __forceinline__ void to_sloped_weights(float (&scores)[columns / 8][4], const Place& place, int query,
                                                  int key, float scale, const float (&lse)[2]) {
  const float first_query = static_cast<float>(query), first_key = static_cast<float>(key);
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float q = first_query + static_cast<float>(e / 2 * 8), k = first_key + static_cast<float>(8 * j + e % 2);
      const PairOf<Rule, partial> pair(place, q, k, scores[j][e], scale, lse[e / 2]);
      scores[j][e] = pair.weight * pair.slope;
    }
  }
}

// Keys down, queries across: weights become the probabilities, and scores these times the rule's slope. lse is that of
// the thread's columns.
template <class Rule, bool partial, int columns>
__device__ __forceinline__ void to_weights(unsigned (&weights)[columns / 16][4], float (&scores)[columns / 8][4],
                                           const Place& place, int query, int key, float scale, const float* lse) {
  const float first_query = static_cast<float>(query), first_key = static_cast<float>(key);
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
    float weight[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float q = first_query + static_cast<float>(8 * j + e % 2), k = first_key + static_cast<float>(e / 2 * 8);
      const PairOf<Rule, partial> pair(place, q, k, scores[j][e], scale, lse[8 * j + e % 2] * log2_e);
      weight[e] = pair.weight;
      scores[j][e] = pair.weight * pair.slope;
    }
    weights[j / 2][j % 2 * 2] = packed(weight[0], weight[1]);
    weights[j / 2][j % 2 * 2 + 1] = packed(weight[2], weight[3]);
  }
}

template <class Rule, int head_size>
__device__ __forceinline__ void query_gradients(const Task& task) {
  constexpr int columns = Tiling<head_size>::query_gradient_columns, stage = tile_bytes<columns, head_size>;
  constexpr int stages = Tiling<head_size>::query_gradient_stages;
  const DocumentTile tile = find_tile(task, gridDim.x - 1 - blockIdx.x);
  if (tile.empty()) return;
  const int head = blockIdx.y, kv_head = head / (task.heads / task.kv_heads);
  const Lane lane;
  const Place place = place_of(task, tile, head);

  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned queries = shared_address(memory), dout = queries + tile_bytes<block_rows, head_size>;
  const unsigned keys = dout + tile_bytes<block_rows, head_size>, values = keys + stages * stage;
  auto* list = reinterpret_cast<unsigned short*>(memory + Tiling<head_size>::query_gradient_bytes);

  fetch_tile<block_rows, head_size>(queries, task.q, head, tile, tile.first);
  fetch_tile<block_rows, head_size>(dout, task.dout, head, tile, tile.first);
  const int count = list_tiles<columns>(list, tile.length, [&](int first) {
    return Rule::visible(place, positions(tile.first, block_rows, tile.length), positions(first, columns, tile.length));
  });
  const auto first_of = [&](int i) { return static_cast<int>(list[i] & (partial_bit - 1)) * columns; };
  const auto fetch = [&](int i) {
    if (i < count) {
      const int place_of_stage = i % stages * stage;
      fetch_tile<columns, head_size>(keys + place_of_stage, task.k, kv_head, tile, first_of(i));
      fetch_tile<columns, head_size>(values + place_of_stage, task.v, kv_head, tile, first_of(i));
    }
    end_fetch();
  };
  fetch(0);

  const int query = tile.first + lane.row, group_bytes = lane.group * 64 * line_bytes;
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool there = query + 8 * half < tile.length;
    lse[half] = there ? *lse_of(task, tile, head, query + 8 * half) * log2_e : 0.0f;
    delta[half] = there ? *delta_of(task, tile, head, query + 8 * half) : 0.0f;
  }
  float dq[head_size / 8][4] = {};
  float scores[columns / 8][4], products[columns / 8][4];
  unsigned weights[columns / 16][4];
  for (int i = 0; i < count; ++i) {
    await_fetches();
    const unsigned k_tile = keys + i % stages * stage, v_tile = values + i % stages * stage;
    multiply_rows<columns, head_size, block_rows, columns>(scores, queries + group_bytes, k_tile);
    multiply_rows<columns, head_size, block_rows, columns>(products, dout + group_bytes, v_tile);
    fetch(i + 1);
    await_products<1>();
    pin(scores);
    const int key = first_of(i) + lane.column;
    if (list[i] & partial_bit) {
      to_sloped_weights<Rule, true, columns>(scores, place, query, key, task.scale, lse);
    } else {
      to_sloped_weights<Rule, false, columns>(scores, place, query, key, task.scale, lse);
    }
    pin(scores);
    await_products<0>();
    pin(products);
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] *= products[j][e] - delta[e / 2];
    }
    pack<columns>(weights, scores);
    multiply_columns<head_size, columns>(dq, weights, k_tile);
    await_products<0>();
    pin(dq);
  }
  write_rows<head_size>(task.dq, head, tile, dq, task.scale, task.scale);
}

// dk, dv or both.
template <class Rule, int head_size, bool of_keys, bool of_values>
__device__ __forceinline__ void key_gradients(const Task& task) {
  constexpr int columns = Tiling<head_size>::key_gradient_columns, stage = tile_bytes<columns, head_size>;
  constexpr int stages = Tiling<head_size>::key_gradient_stages;
  const DocumentTile tile = find_tile(task, blockIdx.x);  // the first keys may be seen by most queries
  if (tile.empty()) return;
  const int kv_head = blockIdx.y, group = task.heads / task.kv_heads;
  const Lane lane;

  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned keys = shared_address(memory), values = keys + tile_bytes<block_rows, head_size>;
  const unsigned queries = values + tile_bytes<block_rows, head_size>, douts = queries + stages * stage;
  // lse and delta of every stage
  auto* rows = reinterpret_cast<float*>(memory + Tiling<head_size>::key_gradient_bytes) - 2 * stages * columns;
  auto* list = reinterpret_cast<unsigned short*>(memory + Tiling<head_size>::key_gradient_bytes);

  fetch_tile<block_rows, head_size>(keys, task.k, kv_head, tile, tile.first);
  if constexpr (of_keys) fetch_tile<block_rows, head_size>(values, task.v, kv_head, tile, tile.first);
  const int key = tile.first + lane.row, group_bytes = lane.group * 64 * line_bytes;
  float dk[of_keys ? head_size / 8 : 1][4] = {}, dv[of_values ? head_size / 8 : 1][4] = {};
  float scores[columns / 8][4], products[columns / 8][4];
  unsigned weights[columns / 16][4], score_grads[columns / 16][4];
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const Place place = place_of(task, tile, head);
    __syncthreads();  // the list and the stages are no longer read
    const int count = list_tiles<columns>(list, tile.length, [&](int first) {
      return Rule::visible(place, positions(first, columns, tile.length),
                           positions(tile.first, block_rows, tile.length));
    });
    const auto first_of = [&](int i) { return static_cast<int>(list[i] & (partial_bit - 1)) * columns; };
    const auto fetch = [&](int i) {
      if (i < count) {
        const int first = first_of(i), query = first + threadIdx.x % columns;
        const int number = i % stages;
        fetch_tile<columns, head_size>(queries + number * stage, task.q, head, tile, first);
        fetch_tile<columns, head_size>(douts + number * stage, task.dout, head, tile, first);
        if (threadIdx.x < 2 * columns) {
          float* to = rows + number * 2 * columns + threadIdx.x;
          const float* from =
              threadIdx.x < columns ? lse_of(task, tile, head, query) : delta_of(task, tile, head, query);
          fetch_number(to, from, query < tile.length);
        }
      }
      end_fetch();
    };
    fetch(0);
    for (int i = 0; i < count; ++i) {
      await_fetches();
      const int number = i % stages;
      const unsigned q_tile = queries + number * stage, dout_tile = douts + number * stage;
      multiply_rows<columns, head_size, block_rows, columns>(scores, keys + group_bytes, q_tile);
      if constexpr (of_keys) {
        multiply_rows<columns, head_size, block_rows, columns>(products, values + group_bytes, dout_tile);
      }
      fetch(i + 1);
      await_products<of_keys ? 1 : 0>();  // the last tile's shares of dk and dv too
      pin(scores);
      const float* lse = rows + number * 2 * columns + lane.column;
      const float* delta = lse + columns;
      const int query = first_of(i) + lane.column;
      if (list[i] & partial_bit) {
        to_weights<Rule, true, columns>(weights, scores, place, query, key, task.scale, lse);
      } else {
        to_weights<Rule, false, columns>(weights, scores, place, query, key, task.scale, lse);
      }
      if constexpr (of_values) multiply_columns<head_size, columns>(dv, weights, dout_tile);
      if constexpr (of_keys) {
        await_products<of_values ? 1 : 0>();
        pin(products);
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[j][e] *= products[j][e] - delta[8 * j + e % 2];
        }
        pack<columns>(score_grads, scores);
        multiply_columns<head_size, columns>(dk, score_grads, q_tile);
      }
      if constexpr (stages == 2) await_products<0>();  // the next fetch goes where this tile's products read
    }
    await_products<0>();
    pin(dv);
    pin(dk);
  }
  if constexpr (of_keys) write_rows<head_size>(task.dk, kv_head, tile, dk, task.scale, task.scale);
  if constexpr (of_values) write_rows<head_size>(task.dv, kv_head, tile, dv, 1.0f, 1.0f);
}

}  // namespace inlay::ops::flash
