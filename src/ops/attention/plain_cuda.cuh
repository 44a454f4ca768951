#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/attention/plain_rule.cuh"

// The device code of our own attention: tiles of queries against tiles of keys in shared memory, fp32 arithmetic for
// either storage type, any head size up to the padded one, and any rule that says which pairs are seen. Nothing is
// summed by atomics: every output belongs to one thread of one block, which adds in a fixed order.
//
// A block has 16 x 16 threads. In a product of two tiles, thread (row, column) owns a few neighbouring rows, and of the
// result's columns every 16th (scores) or a few neighbours out of every 16 groups (outputs): the choice that keeps
// shared-memory reads free of bank conflicts.
namespace inlay::ops::cuda::plain {

inline constexpr int lanes = 16;  // along either side of a block
inline constexpr int threads = lanes * lanes;
inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

// Queries, and keys, of a tile: as many as shared memory and registers allow.
template <int padded>
inline constexpr int tile_rows = padded <= 128 ? 64 : 32;
// Rows of shared memory are four words longer than they need be, so that a column of them spreads over the banks.
template <int padded>
inline constexpr int tile_stride = padded + 4;
template <int padded>
inline constexpr int tile_floats = tile_rows<padded>* tile_stride<padded>;
template <int padded>
inline constexpr int weight_stride = tile_rows<padded> + 4;
template <int padded>
inline constexpr int weight_floats = tile_rows<padded>* weight_stride<padded>;

template <class T>
struct Tokens {  // [tokens, heads, head_size]
  T* data;
  std::int64_t token_stride, head_stride;
};

struct Shape {
  const std::int32_t* cu_seqlens;
  std::int32_t documents, heads, kv_heads, head_size;
  std::int64_t lse_stride;  // from token to token
  float scale;
  bool vectors;  // four elements may be loaded at once: head_size and strides divide by 4, the data is aligned
};

template <class T, class Rule>
struct Forward {
  Shape shape;
  Rule rule;
  Tokens<const T> q, k, v;
  Tokens<T> out;
  float* lse;  // [tokens, heads], rows lse_stride apart
};

template <class T, class Rule>
struct Backward {
  Shape shape;
  Rule rule;
  Tokens<const T> q, k, v, out, dout;
  Tokens<T> dq, dk, dv;
  const float* lse;  // [tokens, heads], rows lse_stride apart
  float* delta;      // [tokens, heads]: dout · out
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline float4 load_four(const __nv_bfloat16* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}

// `count` neighbours in shared memory as one access.
template <int count>
__device__ inline void load(float (&to)[count], const float* from) {
  static_assert(count == 2 || count == 4);
  if constexpr (count == 4) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else {
    const float2 x = *reinterpret_cast<const float2*>(from);
    to[0] = x.x, to[1] = x.y;
  }
}

// Tile numbers without a table: document i's tiles begin at number floor(cu_seqlens[i] / rows) + i. The next
// document's then begin behind its last, and at most one number a document is left over, which is an empty tile.
__device__ inline Tile find_tile(const Shape& shape, int number, int rows) {
  int low = 0, high = shape.documents - 1;  // the last document that begins at or before the number
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (shape.cu_seqlens[middle] / rows + middle <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int begin = shape.cu_seqlens[low];
  return {begin, low, shape.cu_seqlens[low + 1] - begin, (number - begin / rows - low) * rows};
}

// to[row][d] = from[first + row][d], zero outside of the document and of the head.
template <int padded, class T>
__device__ inline void load_tile(float* to, const Tokens<const T>& from, int head, const Tile& tile, int first,
                                 const Shape& shape) {
  constexpr int rows = tile_rows<padded>;
  const T* base = from.data + tile.document * from.token_stride + head * from.head_stride;
  for (int index = threadIdx.x; index < rows * (padded / 4); index += threads) {
    const int row = index / (padded / 4), column = index % (padded / 4) * 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first + row < tile.length && column < shape.head_size) {
      const T* source = base + (first + row) * from.token_stride + column;
      if (shape.vectors) {
        x = load_four(source);
      } else {
        x.x = to_float(source[0]);
        if (column + 1 < shape.head_size) x.y = to_float(source[1]);
        if (column + 2 < shape.head_size) x.z = to_float(source[2]);
        if (column + 3 < shape.head_size) x.w = to_float(source[3]);
      }
    }
    *reinterpret_cast<float4*>(to + row * tile_stride<padded> + column) = x;
  }
}

// What one thread knows of its place.
template <int padded>
struct Place {
  static constexpr int per = tile_rows<padded> / lanes;  // rows of a thread, and its columns of a score tile
  static constexpr int width = padded / lanes < 4 ? padded / lanes : 4;  // neighbouring output columns
  static constexpr int groups = padded / (lanes * width);
  int x = threadIdx.x % lanes, y = threadIdx.x / lanes;

  __device__ int row(int i) const { return y * per + i; }
  __device__ int score_column(int j) const { return x + lanes * j; }
  __device__ int column(int group) const { return (group * lanes + x) * width; }
};

// scores[i][j] = Σ_d a[row i][d] · b[column j][d]
template <int padded, int per>
__device__ inline void multiply(float (&scores)[per][per], const float* a, const float* b, int head_size) {
  const Place<padded> place;
#pragma unroll
  for (int i = 0; i < per; ++i) {
#pragma unroll
    for (int j = 0; j < per; ++j) scores[i][j] = 0.0f;
  }
#pragma unroll 2
  for (int d = 0; d < head_size; d += 4) {
    float left[per][4], right[per][4];
#pragma unroll
    for (int i = 0; i < per; ++i) load(left[i], a + place.row(i) * tile_stride<padded> + d);
#pragma unroll
    for (int j = 0; j < per; ++j) load(right[j], b + place.score_column(j) * tile_stride<padded> + d);
#pragma unroll
    for (int i = 0; i < per; ++i) {
#pragma unroll
      for (int j = 0; j < per; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[i][j] = fmaf(left[i][e], right[j][e], scores[i][j]);
      }
    }
  }
}

// A thread's part of an output tile: rows row(i), columns column(group) + e.
template <int padded>
struct Output {
  static constexpr int per = Place<padded>::per, width = Place<padded>::width, groups = Place<padded>::groups;
  float values[per][groups][width] = {};

  __device__ void scale_row(int i, float factor) {
#pragma unroll
    for (int group = 0; group < groups; ++group) {
#pragma unroll
      for (int e = 0; e < width; ++e) values[i][group][e] *= factor;
    }
  }

  __device__ void add(int i, float weight, const float (&x)[groups][width]) {
#pragma unroll
    for (int group = 0; group < groups; ++group) {
#pragma unroll
      for (int e = 0; e < width; ++e) values[i][group][e] = fmaf(weight, x[group][e], values[i][group][e]);
    }
  }

  // values[row][c] += Σ_n weights[row][n] · tile[n][c]
  __device__ void accumulate(const float* weights, const float* tile) {
    const Place<padded> place;
#pragma unroll 2
    for (int n = 0; n < tile_rows<padded>; n += 4) {
      float weight[per][4];
#pragma unroll
      for (int i = 0; i < per; ++i) load(weight[i], weights + place.row(i) * weight_stride<padded> + n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x[groups][width];
        load_row(x, tile, n + e);
#pragma unroll
        for (int i = 0; i < per; ++i) add(i, weight[i][e], x);
      }
    }
  }

  // values[row][c] += Σ_n weights[n][row] · tile[n][c]
  __device__ void accumulate_transposed(const float* weights, const float* tile) {
    const Place<padded> place;
#pragma unroll 4
    for (int n = 0; n < tile_rows<padded>; ++n) {
      float weight[per], x[groups][width];
      load(weight, weights + n * weight_stride<padded> + place.row(0));
      load_row(x, tile, n);
#pragma unroll
      for (int i = 0; i < per; ++i) add(i, weight[i], x);
    }
  }

  __device__ static void load_row(float (&x)[groups][width], const float* tile, int row) {
    const Place<padded> place;
#pragma unroll
    for (int group = 0; group < groups; ++group) load(x[group], tile + row * tile_stride<padded> + place.column(group));
  }

  // to[first + row][c] = factor_of(i) · values[row][c]
  template <class T, class Factor>
  __device__ void write(const Tokens<T>& to, int head, const Tile& tile, const Shape& shape, Factor factor_of) const {
    const Place<padded> place;
    T* base = to.data + tile.document * to.token_stride + head * to.head_stride;
#pragma unroll
    for (int i = 0; i < per; ++i) {
      const int position = tile.first + place.row(i);
      if (position >= tile.length) continue;
#pragma unroll
      for (int group = 0; group < groups; ++group) {
#pragma unroll
        for (int e = 0; e < width; ++e) {
          const int column = place.column(group) + e;
          if (column < shape.head_size) {
            store(base + position * to.token_stride + column, factor_of(i) * values[i][group][e]);
          }
        }
      }
    }
  }
};

template <int padded, class T, class Rule>
__global__ void __launch_bounds__(threads, 1) forward_kernel(const __grid_constant__ Forward<T, Rule> task) {
  constexpr int rows = tile_rows<padded>, per = Place<padded>::per;
  const Shape& shape = task.shape;
  // The heaviest tiles come last in a document, so they are started first.
  const Tile tile = find_tile(shape, static_cast<int>(gridDim.x - 1 - blockIdx.x), rows);
  if (tile.empty()) return;
  const int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
  const Place<padded> place;
  const auto at = task.rule.at(tile, head);

  extern __shared__ float4 shared[];
  float* queries = reinterpret_cast<float*>(shared);
  float* keys = queries + tile_floats<padded>;  // then the values
  float* weights = keys + tile_floats<padded>;

  load_tile<padded>(queries, task.q, head, tile, tile.first, shape);
  Output<padded> output;
  float top[per], sum[per];  // of a row so far: the largest score, in units of log 2, and the sum of powers of 2
#pragma unroll
  for (int i = 0; i < per; ++i) top[i] = -INFINITY, sum[i] = 0.0f;

  const int end = task.rule.end_of_keys(tile, rows);
  for (int first = task.rule.first_key(tile, rows); first < end; first += rows) {
    if (!task.rule.meet(at, tile.first, first, rows, rows, tile.length)) continue;
    __syncthreads();  // the last tile's values are no longer read
    load_tile<padded>(keys, task.k, kv_head, tile, first, shape);
    __syncthreads();
    float scores[per][per];
    multiply<padded>(scores, queries, keys, shape.head_size);
#pragma unroll
    for (int i = 0; i < per; ++i) {
      const int query = tile.first + place.row(i);
      float largest = top[i];
#pragma unroll
      for (int j = 0; j < per; ++j) {
        const Pair pair =
            task.rule.pair(at, query, first + place.score_column(j), tile.length, scores[i][j] * shape.scale);
        scores[i][j] = pair.seen ? pair.score * log2_e : -INFINITY;
        largest = fmaxf(largest, scores[i][j]);
      }
#pragma unroll
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      }
      const float base = largest == -INFINITY ? 0.0f : largest;  // nothing seen yet: all weights are 2^-inf
      const float shrink = exp2f(top[i] - base);
      top[i] = largest;
      sum[i] *= shrink;
      output.scale_row(i, shrink);
#pragma unroll
      for (int j = 0; j < per; ++j) {
        const float weight = exp2f(scores[i][j] - base);
        sum[i] += weight;  // of this thread's columns; the lanes are added up at the end
        weights[place.row(i) * weight_stride<padded> + place.score_column(j)] = weight;
      }
    }
    __syncthreads();  // the keys are no longer read, the weights are complete
    load_tile<padded>(keys, task.v, kv_head, tile, first, shape);
    __syncthreads();
    output.accumulate(weights, keys);
  }

#pragma unroll
  for (int i = 0; i < per; ++i) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
    }
    const int query = tile.first + place.row(i);
    if (place.x == 0 && query < tile.length) {
      task.lse[(tile.document + query) * shape.lse_stride + head] = top[i] * ln_2 + logf(sum[i]);
    }
  }
  output.write(task.out, head, tile, shape, [&](int i) { return sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f; });
}

// delta = dout · out, a warp for every token and head.
template <class T, class Rule>
__global__ void __launch_bounds__(threads)
    delta_kernel(const __grid_constant__ Backward<T, Rule> task, std::int64_t tokens) {
  const Shape& shape = task.shape;
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / 32;
  if (index >= tokens * shape.heads) return;
  const std::int64_t token = index / shape.heads;
  const int head = static_cast<int>(index % shape.heads), lane = threadIdx.x % 32;
  const T* out = task.out.data + token * task.out.token_stride + head * task.out.head_stride;
  const T* dout = task.dout.data + token * task.dout.token_stride + head * task.dout.head_stride;
  float sum = 0.0f;
  if (shape.vectors) {
    for (int d = lane * 4; d < shape.head_size; d += 32 * 4) {
      const float4 x = load_four(out + d), y = load_four(dout + d);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    }
  } else {
    for (int d = lane; d < shape.head_size; d += 32) sum = fmaf(to_float(out[d]), to_float(dout[d]), sum);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) task.delta[index] = sum;
}

// weights[query][key] = the probabilities p, and score_grads[query][key] = p (dout · v - delta), of one pair of tiles;
// either may be absent. Both are the gradients' weights; the score's scale is left to the end.
template <int padded, class T, class Rule>
__device__ inline void pair_of_tiles(const Backward<T, Rule>& task, const typename Rule::At& rule_at, const Tile& tile,
                                     int head, int first_query, int first_key, const float* queries, const float* dout,
                                     const float* keys, const float* values, float* weights, float* score_grads) {
  constexpr int per = Place<padded>::per;
  const Shape& shape = task.shape;
  const Place<padded> place;
  float scores[per][per], products[per][per];
  multiply<padded>(scores, queries, keys, shape.head_size);
  multiply<padded>(products, dout, values, shape.head_size);
#pragma unroll
  for (int i = 0; i < per; ++i) {
    const int query = first_query + place.row(i);
    float lse = 0.0f, delta = 0.0f;
    if (query < tile.length) {
      const std::int64_t token = tile.document + query;
      lse = task.lse[token * shape.lse_stride + head] * log2_e;
      delta = task.delta[token * shape.heads + head];
    }
#pragma unroll
    for (int j = 0; j < per; ++j) {
      const Pair pair =
          task.rule.pair(rule_at, query, first_key + place.score_column(j), tile.length, scores[i][j] * shape.scale);
      const float weight = pair.seen ? exp2f(fmaf(pair.score, log2_e, -lse)) : 0.0f;
      const int at = place.row(i) * weight_stride<padded> + place.score_column(j);
      if (weights != nullptr) weights[at] = weight;
      score_grads[at] = pair.seen ? weight * (products[i][j] - delta) * pair.slope : 0.0f;
    }
  }
}

// dk and dv of one tile of keys: the queries of all heads that read the key head, tile by tile.
template <int padded, class T, class Rule>
__global__ void __launch_bounds__(threads, 1) key_gradient_kernel(const __grid_constant__ Backward<T, Rule> task) {
  constexpr int rows = tile_rows<padded>;
  const Shape& shape = task.shape;
  const Tile tile = find_tile(shape, static_cast<int>(blockIdx.x), rows);  // the first keys are seen by most queries
  if (tile.empty()) return;
  const int kv_head = blockIdx.y, group = shape.heads / shape.kv_heads;

  extern __shared__ float4 shared[];
  float* keys = reinterpret_cast<float*>(shared);
  float* values = keys + tile_floats<padded>;
  float* queries = values + tile_floats<padded>;
  float* dout = queries + tile_floats<padded>;
  float* weights = dout + tile_floats<padded>;
  float* score_grads = weights + weight_floats<padded>;

  load_tile<padded>(keys, task.k, kv_head, tile, tile.first, shape);
  load_tile<padded>(values, task.v, kv_head, tile, tile.first, shape);
  Output<padded> dk, dv;
  const int end = task.rule.end_of_queries(tile, rows);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const auto at = task.rule.at(tile, head);
    for (int first = task.rule.first_query(tile); first < end; first += rows) {
      if (!task.rule.meet(at, first, tile.first, rows, rows, tile.length)) continue;
      __syncthreads();  // the last pair's tiles are no longer read
      load_tile<padded>(queries, task.q, head, tile, first, shape);
      load_tile<padded>(dout, task.dout, head, tile, first, shape);
      __syncthreads();
      pair_of_tiles<padded>(task, at, tile, head, first, tile.first, queries, dout, keys, values, weights, score_grads);
      __syncthreads();
      dv.accumulate_transposed(weights, dout);
      dk.accumulate_transposed(score_grads, queries);
    }
  }
  dk.write(task.dk, kv_head, tile, shape, [&](int) { return shape.scale; });
  dv.write(task.dv, kv_head, tile, shape, [](int) { return 1.0f; });
}

// dq of one tile of queries.
template <int padded, class T, class Rule>
__global__ void __launch_bounds__(threads, 1) query_gradient_kernel(const __grid_constant__ Backward<T, Rule> task) {
  constexpr int rows = tile_rows<padded>;
  const Shape& shape = task.shape;
  const Tile tile = find_tile(shape, static_cast<int>(gridDim.x - 1 - blockIdx.x), rows);
  if (tile.empty()) return;
  const int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);

  extern __shared__ float4 shared[];
  float* keys = reinterpret_cast<float*>(shared);
  float* values = keys + tile_floats<padded>;
  float* queries = values + tile_floats<padded>;
  float* dout = queries + tile_floats<padded>;
  float* score_grads = dout + tile_floats<padded>;

  load_tile<padded>(queries, task.q, head, tile, tile.first, shape);
  load_tile<padded>(dout, task.dout, head, tile, tile.first, shape);
  Output<padded> dq;
  const int end = task.rule.end_of_keys(tile, rows);
  const auto at = task.rule.at(tile, head);
  for (int first = task.rule.first_key(tile, rows); first < end; first += rows) {
    if (!task.rule.meet(at, tile.first, first, rows, rows, tile.length)) continue;
    __syncthreads();
    load_tile<padded>(keys, task.k, kv_head, tile, first, shape);
    load_tile<padded>(values, task.v, kv_head, tile, first, shape);
    __syncthreads();
    pair_of_tiles<padded>(task, at, tile, head, tile.first, first, queries, dout, keys, values, nullptr, score_grads);
    __syncthreads();
    dq.accumulate(score_grads, keys);
  }
  dq.write(task.dq, head, tile, shape, [&](int) { return shape.scale; });
}

}  // namespace inlay::ops::cuda::plain
