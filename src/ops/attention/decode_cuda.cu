#include <algorithm>
#include <bit>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/attention/decode.h"

// A block for every key/value head of every token and every split of the keys; its query heads read the same keys at
// about the same time, so memory gives each of them once. A warp works for one query head, on a share ("slice") of the
// keys. A key belongs to as many neighbouring lanes as hold it at eight elements each; the lanes of a warp so fall into
// parts, each of which keeps its own softmax. At the end the parts are put together through shared memory, in their
// order, and where the keys are split, the splits by a second kernel, in theirs.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int per_lane = 8;     // elements of a head
constexpr int keys_a_go = 4;    // of a part, under way at the same time
constexpr int most_warps = 8;   // of a block
constexpr int least_keys = 64;  // of a split that has any
constexpr float log2_e = 1.44269504f;

struct Strides {
  std::int64_t sequence, head, token;
};

template <class T>
struct Task {
  T* out;
  float* parts;  // [rows, heads, splits, top and total and a row], or null where the keys are not split
  const T *q, *k, *v;
  const std::int32_t *sequences, *positions;  // of the rows
  Strides out_strides, q_strides, k_strides, v_strides;
  int group, width, window;
  float scale;     // into powers of two; with a cap, into multiples of it
  float cap;       // in powers of two; 0: none
  const T* sinks;  // or null
};

struct Layout {
  int lanes;   // of a part
  int heads;   // at the same time
  int slices;  // warps a head

  __host__ __device__ int parts_a_warp() const { return 32 / lanes; }
  __host__ __device__ int parts() const { return slices * parts_a_warp(); }
};

// What a lane holds of one row: vectors lane, lane + lanes, ... of it.
template <class T, int V>
struct Piece {
  static constexpr int vectors = per_lane / V;
  Pack<T, V> pack[vectors];

  __device__ __forceinline__ void load(const T* row, int lane, int lanes, int width, bool exists) {
#pragma unroll
    for (int n = 0; n < vectors; ++n) {
      const int column = (n * lanes + lane) * V;
      if (exists && column < width) {
        pack[n].load(row + column);
      } else {
        pack[n].clear();
      }
    }
  }
  __device__ __forceinline__ void get(float (&x)[per_lane]) const {
#pragma unroll
    for (int n = 0; n < vectors; ++n) {
      float part[V];
      pack[n].get(part);
#pragma unroll
      for (int i = 0; i < V; ++i) x[n * V + i] = part[i];
    }
  }
};

// What a part has seen: its largest score, and the sums of 2^(score - top) and of the values weighted by it.
struct Seen {
  float top = -INFINITY, total = 0.0f, sums[per_lane] = {};
};

// A part without keys yet has a top of minus infinity, and so has a key that does not exist: both weigh nothing.
__device__ __forceinline__ float weight(float score, float top) {
  return score == -INFINITY ? 0.0f : exp2f(score - top);
}

template <class T, int V>
__device__ __forceinline__ void see(Seen& seen, const Task<T>& task, const float (&q)[per_lane], const T* keys,
                                    const T* values, int key, int step, int end, int lane, int lanes) {
  Piece<T, V> k[keys_a_go], v[keys_a_go];
#pragma unroll
  for (int n = 0; n < keys_a_go; ++n) {
    const int at = key + n * step;
    k[n].load(keys + at * task.k_strides.token, lane, lanes, task.width, at < end);
    v[n].load(values + at * task.v_strides.token, lane, lanes, task.width, at < end);
  }
  float scores[keys_a_go], top = seen.top;
#pragma unroll
  for (int n = 0; n < keys_a_go; ++n) {
    float x[per_lane], product = 0.0f;
    k[n].get(x);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) product += q[i] * x[i];
    product = warp_sum(product, lanes) * task.scale;
    if (task.cap > 0) product = task.cap * tanhf(product);
    scores[n] = key + n * step < end ? product : -INFINITY;
    top = fmaxf(top, scores[n]);
  }
  const float rescale = weight(seen.top, top);
  seen.total *= rescale;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) seen.sums[i] *= rescale;
#pragma unroll
  for (int n = 0; n < keys_a_go; ++n) {
    float x[per_lane];
    v[n].get(x);
    const float p = weight(scores[n], top);
    seen.total += p;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) seen.sums[i] += p * x[i];
  }
  seen.top = top;
}

// The sink's share of a head's softmax, in powers of two.
template <class T>
__device__ __forceinline__ float sink_of(const Task<T>& task, std::int64_t head) {
  if (task.sinks == nullptr) return -INFINITY;
  float logit[1];
  load(logit, task.sinks + head);
  return logit[0] * log2_e;
}

template <class T, int V>
__global__ void __launch_bounds__(32 * most_warps) decode(Task<T> task, Layout layout) {
  extern __shared__ float shared[];  // [heads, parts, top and total and a row]
  const std::int64_t token = blockIdx.y, kv_head = blockIdx.x, sequence = task.sequences[token];
  const int length = task.positions[token] + 1;
  const int first = task.window == 0 ? 0 : max(length - task.window, 0);
  const int share = max((length - first + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z), least_keys);
  const int my_first = first + static_cast<int>(blockIdx.z) * share, end = min(my_first + share, length);
  const int warp = static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x) % layout.lanes;
  const int part = static_cast<int>(threadIdx.x) / layout.lanes;
  const int warp_head = warp / layout.slices, slice = warp % layout.slices;
  const int parts = layout.parts(), parts_a_warp = layout.parts_a_warp(), row = task.width + 2;
  const T* keys = task.k + sequence * task.k_strides.sequence + kv_head * task.k_strides.head;
  const T* values = task.v + sequence * task.v_strides.sequence + kv_head * task.v_strides.head;

  for (int begin = 0; begin < task.group; begin += layout.heads) {
    const int head = begin + warp_head;
    if (head < task.group) {  // all of a warp or none
      const T* query = task.q + token * task.q_strides.sequence + (kv_head * task.group + head) * task.q_strides.head;
      Piece<T, V> piece;
      piece.load(query, lane, layout.lanes, task.width, true);
      float q[per_lane];
      piece.get(q);
      Seen seen;
      // The bounds are the same for all lanes of a warp: all of them take part in its sums.
      for (int key = my_first + slice * keys_a_go * parts_a_warp; key < end; key += keys_a_go * parts) {
        see<T, V>(seen, task, q, keys, values, key + part, parts_a_warp, end, lane, layout.lanes);
      }
      float* to = shared + (warp_head * parts + slice * parts_a_warp + part) * row;
      if (lane == 0) to[0] = seen.top, to[1] = seen.total;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const int column = (i / V * layout.lanes + lane) * V + i % V;
        if (column < task.width) to[2 + column] = seen.sums[i];
      }
    }
    __syncthreads();
    const int heads = min(layout.heads, task.group - begin);
    for (int i = warp * 32 + static_cast<int>(threadIdx.x); i < heads * task.width; i += blockDim.x * blockDim.y) {
      const int which = i / task.width, column = i % task.width;
      const std::int64_t head = kv_head * task.group + begin + which;
      const float* from = shared + which * parts * row;
      float sum = 0.0f;
      const float sink = task.parts == nullptr ? sink_of(task, head) : -INFINITY;
      float top = sink;
      for (int p = 0; p < parts; ++p) top = fmaxf(top, from[p * row]);
      float total = weight(sink, top);
      for (int p = 0; p < parts; ++p) {
        const float factor = weight(from[p * row], top);
        total += factor * from[p * row + 1];
        sum += factor * from[p * row + 2 + column];
      }
      if (task.parts != nullptr) {
        const std::int64_t heads_in_all = std::int64_t{gridDim.x} * task.group;
        float* to = task.parts + ((token * heads_in_all + head) * gridDim.z + blockIdx.z) * row;
        if (column == 0) to[0] = top, to[1] = total;
        to[2 + column] = sum;
        continue;
      }
      const float result[1] = {sum / total};
      store(task.out + token * task.out_strides.sequence + head * task.out_strides.head + column, result);
    }
    __syncthreads();
  }
}

// A block for each head of each token.
template <class T>
__global__ void join_splits(Task<T> task, int splits) {
  const std::int64_t token = blockIdx.y, head = blockIdx.x;
  const int row = task.width + 2;
  const float* from = task.parts + (token * gridDim.x + head) * splits * row;
  const float sink = sink_of(task, head);
  float top = sink;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, from[s * row]);
  for (int column = static_cast<int>(threadIdx.x); column < task.width; column += static_cast<int>(blockDim.x)) {
    float total = weight(sink, top), sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const float factor = weight(from[s * row], top);
      total += factor * from[s * row + 1];
      sum += factor * from[s * row + 2 + column];
    }
    const float result[1] = {sum / total};
    store(task.out + token * task.out_strides.sequence + head * task.out_strides.head + column, result);
  }
}

template <class T>
__global__ void place_rows(T* keys, T* values, const T* k, const T* v, Strides cache, Strides k_strides,
                           Strides v_strides, const std::int32_t* sequences, const std::int32_t* positions, int width) {
  const std::int64_t head = blockIdx.x, token = blockIdx.y;
  const std::int64_t to =
      sequences[token] * cache.sequence + head * cache.head + std::int64_t{positions[token]} * cache.token;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    keys[to + i] = k[token * k_strides.sequence + head * k_strides.head + i];
    values[to + i] = v[token * v_strides.sequence + head * v_strides.head + i];
  }
}

__global__ void add_one(std::int32_t* numbers, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) ++numbers[i];
}

Strides head_strides(const ConstView& view) { return {view.stride(0), view.stride(1), 0}; }
Strides cache_strides(const ConstView& view) { return {view.stride(0), view.stride(1), view.stride(2)}; }

}  // namespace

void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View parts) {
  const auto group = static_cast<int>(q.dim(1) / k.dim(1)), width = static_cast<int>(q.dim(2));
  Layout layout{};
  layout.lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>((width + per_lane - 1) / per_lane)));
  layout.heads = std::min(group, most_warps);
  layout.slices = most_warps / layout.heads;
  const int floats = layout.heads * layout.parts() * (width + 2);
  const auto splits = static_cast<unsigned>(parts.absent() ? 1 : parts.dim(2));
  const auto tokens = static_cast<unsigned>(q.dim(0));
  const dim3 blocks(static_cast<unsigned>(k.dim(1)), tokens, splits);
  const dim3 threads(32, static_cast<unsigned>(layout.heads * layout.slices));
  INLAY_ASSERT(q.dim(0) < 65536, "decode_attention: {} tokens at once, expected at most 65535", q.dim(0));
  with_activation_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    const Task<T> task{pointer<T>(out),
                       pointer<float>(parts),
                       pointer<T>(q),
                       pointer<T>(k),
                       pointer<T>(v),
                       pointer<std::int32_t>(spec.places.sequences),
                       pointer<std::int32_t>(spec.places.positions),
                       head_strides(out),
                       head_strides(q),
                       cache_strides(k),
                       cache_strides(v),
                       group,
                       width,
                       static_cast<int>(spec.window),
                       spec.softcap > 0 ? spec.scale / spec.softcap : spec.scale * log2_e,
                       spec.softcap * log2_e,
                       pointer<T>(spec.sinks)};
    with_width<T>(vectors_fit(full_vector<T>, q, k, v), [&](auto vector) {
      decode<T, vector>
          <<<blocks, threads, static_cast<std::size_t>(floats) * sizeof(float), stream_of(exec)>>>(task, layout);
    });
    if (splits == 1) return;
    const auto heads = static_cast<unsigned>(q.dim(1));
    join_splits<T><<<dim3(heads, tokens), 128, 0, stream_of(exec)>>>(task, static_cast<int>(splits));
  });
  check_launch("decode_attention");
}

void fill_cache(Exec& exec, View keys, View values, const CacheRows& rows, const CachePlaces& places) {
  const auto tokens = static_cast<unsigned>(rows.k.dim(0));
  INLAY_ASSERT(tokens < 65536, "fill_cache: {} tokens at once, expected at most 65535", tokens);
  const dim3 blocks(static_cast<unsigned>(keys.dim(1)), tokens);
  with_activation_type(keys.dtype(), [&](auto type) {
    using T = decltype(type);
    place_rows<T><<<blocks, 128, 0, stream_of(exec)>>>(
        pointer<T>(keys), pointer<T>(values), pointer<T>(rows.k), pointer<T>(rows.v), cache_strides(keys),
        head_strides(rows.k), head_strides(rows.v), pointer<std::int32_t>(places.sequences),
        pointer<std::int32_t>(places.positions), static_cast<int>(keys.dim(3)));
  });
  check_launch("fill_cache");
}

void advance(Exec& exec, View positions) {
  const auto count = static_cast<unsigned>(positions.size());
  add_one<<<(count + 127) / 128, 128, 0, stream_of(exec)>>>(pointer<std::int32_t>(positions), static_cast<int>(count));
  check_launch("advance");
}

}  // namespace inlay::ops::cuda
