#include <algorithm>
#include <bit>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/attention/decode.h"

// A block for every key/value head of every sequence; its query heads read the same keys at about the same time, so
// memory gives each of them once. A warp works for one query head, on a share ("slice") of the keys. A key belongs to
// as many neighbouring lanes as hold it at eight elements each; the lanes of a warp so fall into parts, each of which
// keeps its own softmax. At the end the parts are put together through shared memory, in their order.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int per_lane = 8;    // elements of a head
constexpr int keys_a_go = 4;   // of a part, under way at the same time
constexpr int most_warps = 8;  // of a block
constexpr float log2_e = 1.44269504f;

struct Strides {
  std::int64_t sequence, head, token;
};

template <class T>
struct Task {
  T* out;
  const T *q, *k, *v;
  Strides out_strides, q_strides, k_strides, v_strides;
  int group, width, first, length;
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
                                    const T* values, int key, int step, int lane, int lanes) {
  Piece<T, V> k[keys_a_go], v[keys_a_go];
#pragma unroll
  for (int n = 0; n < keys_a_go; ++n) {
    const int at = key + n * step;
    k[n].load(keys + at * task.k_strides.token, lane, lanes, task.width, at < task.length);
    v[n].load(values + at * task.v_strides.token, lane, lanes, task.width, at < task.length);
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
    scores[n] = key + n * step < task.length ? product : -INFINITY;
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

template <class T, int V>
__global__ void __launch_bounds__(32 * most_warps) decode(Task<T> task, Layout layout) {
  extern __shared__ float shared[];  // [heads, parts, top and total and a row]
  const std::int64_t sequence = blockIdx.y, kv_head = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x) % layout.lanes;
  const int part = static_cast<int>(threadIdx.x) / layout.lanes;
  const int warp_head = warp / layout.slices, slice = warp % layout.slices;
  const int parts = layout.parts(), parts_a_warp = layout.parts_a_warp(), row = task.width + 2;
  const T* keys = task.k + sequence * task.k_strides.sequence + kv_head * task.k_strides.head;
  const T* values = task.v + sequence * task.v_strides.sequence + kv_head * task.v_strides.head;

  for (int begin = 0; begin < task.group; begin += layout.heads) {
    const int head = begin + warp_head;
    if (head < task.group) {  // all of a warp or none
      const T* query =
          task.q + sequence * task.q_strides.sequence + (kv_head * task.group + head) * task.q_strides.head;
      Piece<T, V> piece;
      piece.load(query, lane, layout.lanes, task.width, true);
      float q[per_lane];
      piece.get(q);
      Seen seen;
      // The bounds are the same for all lanes of a warp: all of them take part in its sums.
      for (int key = task.first + slice * keys_a_go * parts_a_warp; key < task.length; key += keys_a_go * parts) {
        see<T, V>(seen, task, q, keys, values, key + part, parts_a_warp, lane, layout.lanes);
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
      const float* from = shared + which * parts * row;
      float sum = 0.0f, sink = -INFINITY;
      if (task.sinks != nullptr) {
        float logit[1];
        load(logit, task.sinks + kv_head * task.group + begin + which);
        sink = logit[0] * log2_e;
      }
      float top = sink;
      for (int p = 0; p < parts; ++p) top = fmaxf(top, from[p * row]);
      float total = weight(sink, top);
      for (int p = 0; p < parts; ++p) {
        const float factor = weight(from[p * row], top);
        total += factor * from[p * row + 1];
        sum += factor * from[p * row + 2 + column];
      }
      T* out = task.out + sequence * task.out_strides.sequence;
      const float result[1] = {sum / total};
      store(out + (kv_head * task.group + begin + which) * task.out_strides.head + column, result);
    }
    __syncthreads();
  }
}

Strides head_strides(const ConstView& view) { return {view.stride(0), view.stride(1), 0}; }
Strides cache_strides(const ConstView& view) { return {view.stride(0), view.stride(1), view.stride(2)}; }

}  // namespace

void decode_attention(Exec& exec, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec) {
  const auto group = static_cast<int>(q.dim(1) / k.dim(1)), width = static_cast<int>(q.dim(2));
  const std::int64_t first = spec.window == 0 ? 0 : std::max<std::int64_t>(spec.length - spec.window, 0);
  Layout layout{};
  layout.lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>((width + per_lane - 1) / per_lane)));
  layout.heads = std::min(group, most_warps);
  layout.slices = most_warps / layout.heads;
  const int floats = layout.heads * layout.parts() * (width + 2);
  const dim3 blocks(static_cast<unsigned>(k.dim(1)), static_cast<unsigned>(q.dim(0)));
  const dim3 threads(32, static_cast<unsigned>(layout.heads * layout.slices));
  INLAY_ASSERT(q.dim(0) < 65536, "decode_attention: {} sequences at once, expected at most 65535", q.dim(0));
  with_activation_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    const Task<T> task{pointer<T>(out),
                       pointer<T>(q),
                       pointer<T>(k),
                       pointer<T>(v),
                       head_strides(out),
                       head_strides(q),
                       cache_strides(k),
                       cache_strides(v),
                       group,
                       width,
                       static_cast<int>(first),
                       static_cast<int>(spec.length),
                       spec.softcap > 0 ? spec.scale / spec.softcap : spec.scale * log2_e,
                       spec.softcap * log2_e,
                       pointer<T>(spec.sinks)};
    with_width<T>(vectors_fit(full_vector<T>, q, k, v), [&](auto vector) {
      decode<T, vector>
          <<<blocks, threads, static_cast<std::size_t>(floats) * sizeof(float), stream_of(exec)>>>(task, layout);
    });
  });
  check_launch("decode_attention");
}

}  // namespace inlay::ops::cuda
