#include <algorithm>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/moe_route.h"

// A warp for every token. Lane l holds the logits of experts l, l + 32, ...; the k choices lie one to a lane.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int warps = 8;
constexpr unsigned all_lanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ float warp_largest(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

// The logits of one token; those that do not exist are minus infinity.
template <int per>
struct Logits {
  float z[per];

  __device__ __forceinline__ Logits(const float* row, int count) {
#pragma unroll
    for (int i = 0; i < per; ++i) z[i] = expert(i) < count ? row[expert(i)] : -INFINITY;
  }
  static __device__ __forceinline__ int expert(int i) { return i * 32 + lane_id(); }

  // z becomes softmax(z).
  __device__ __forceinline__ void soften() {
    float top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < per; ++i) top = fmaxf(top, z[i]);
    top = warp_largest(top);
#pragma unroll
    for (int i = 0; i < per; ++i) total += z[i] = expf(z[i] - top);
    const float inverse = 1.0f / warp_sum(total);
#pragma unroll
    for (int i = 0; i < per; ++i) z[i] *= inverse;
  }

  // The largest that is not taken yet, for all lanes; equal ones by index. A NaN counts as the lowest.
  __device__ __forceinline__ int take_largest(unsigned& taken, int count) const {
    float best = -INFINITY;
    int at = most_experts;
    const auto meet = [&](float value, int place) {
      if (place < count && (at == most_experts || value > best || (value == best && place < at))) {
        best = value, at = place;
      }
    };
#pragma unroll
    for (int i = 0; i < per; ++i) {
      if ((taken >> i & 1u) == 0) meet(isnan(z[i]) ? -INFINITY : z[i], expert(i));
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const float value = __shfl_xor_sync(all_lanes, best, distance);
      meet(value, __shfl_xor_sync(all_lanes, at, distance));
    }
    if (at % 32 == lane_id()) taken |= 1u << (at / 32);
    return at;
  }
};

// This lane's weight among the choices; 0 for lanes that hold none. `logit` is that of the lane's choice.
template <int per>
__device__ __forceinline__ float weight_of(float logit, const Logits<per>& softened, int choice, int k,
                                           RouteWeights kind) {
  if (kind == RouteWeights::softmax_of_chosen) {
    const float value = lane_id() < k ? logit : -INFINITY;
    const float power = expf(value - warp_largest(value));
    const float total = warp_sum(power);
    return lane_id() < k ? power / total : 0.0f;
  }
  float weight = 0.0f;
  for (int c = 0; c < k; ++c) {
    const int expert = __shfl_sync(all_lanes, choice, c);
    float p = 0.0f;
#pragma unroll
    for (int i = 0; i < per; ++i) {
      if (i == expert / 32) p = softened.z[i];
    }
    p = __shfl_sync(all_lanes, p, expert % 32);
    if (lane_id() == c) weight = p;
  }
  return weight;
}

template <int per>
__global__ void __launch_bounds__(32 * warps)
    route(std::int32_t* experts, float* weights, const float* logits, std::int64_t ld, std::int64_t tokens, int count,
          int k, RouteWeights kind) {
  const std::int64_t token = std::int64_t{blockIdx.x} * warps + threadIdx.y;
  if (token >= tokens) return;
  Logits<per> row(logits + token * ld, count);
  unsigned taken = 0;
  int choice = 0;
  for (int c = 0; c < k; ++c) {
    const int expert = row.take_largest(taken, count);
    if (lane_id() == c) choice = expert;
  }
  const float logit = logits[token * ld + choice];
  if (kind == RouteWeights::chosen_of_softmax) row.soften();
  const float weight = weight_of(logit, row, choice, k, kind);
  if (lane_id() >= k) return;
  experts[token * k + lane_id()] = choice;
  weights[token * k + lane_id()] = weight;
}

struct BackwardTask {
  const float* dweights;
  const std::int32_t* experts;
  const float* logits;
  std::int64_t logits_ld, tokens;
  const std::int32_t* assigned;  // or null
  float factor;
  int count, k;
  RouteWeights kind;
};

template <int per, class T>
__global__ void __launch_bounds__(32 * warps) backward(T* dlogits, std::int64_t ld, BackwardTask task) {
  const std::int64_t token = std::int64_t{blockIdx.x} * warps + threadIdx.y;
  if (token >= task.tokens) return;
  const bool holds = lane_id() < task.k;
  const int choice = holds ? task.experts[token * task.k + lane_id()] : 0;
  const float dweight = holds ? task.dweights[token * task.k + lane_id()] : 0.0f;
  const float logit = task.logits[token * task.logits_ld + choice];
  Logits<per> row(task.logits + token * task.logits_ld, task.count);
  row.soften();
  const float weight = weight_of(logit, row, choice, task.k, task.kind);
  const float spread = warp_sum(weight * dweight);
  const bool chosen_only = task.kind == RouteWeights::softmax_of_chosen;

  float dz[per];
#pragma unroll
  for (int i = 0; i < per; ++i) dz[i] = chosen_only ? 0.0f : -row.z[i] * spread;
  const float own = chosen_only ? weight * (dweight - spread) : weight * dweight;
  for (int c = 0; c < task.k; ++c) {
    const int expert = __shfl_sync(all_lanes, choice, c);
    const float gradient = __shfl_sync(all_lanes, own, c);
#pragma unroll
    for (int i = 0; i < per; ++i) {
      if (Logits<per>::expert(i) == expert) dz[i] += gradient;
    }
  }
  if (task.assigned != nullptr) {
    float mean = 0.0f;
    float often[per];
#pragma unroll
    for (int i = 0; i < per; ++i) {
      often[i] = Logits<per>::expert(i) < task.count ? static_cast<float>(task.assigned[Logits<per>::expert(i)]) : 0.0f;
      mean += often[i] * row.z[i];
    }
    mean = warp_sum(mean);
#pragma unroll
    for (int i = 0; i < per; ++i) dz[i] += task.factor * row.z[i] * (often[i] - mean);
  }
#pragma unroll
  for (int i = 0; i < per; ++i) {
    const float value[1] = {dz[i]};
    if (Logits<per>::expert(i) < task.count) store(dlogits + token * ld + Logits<per>::expert(i), value);
  }
}

// A row of partial sums for each block, which takes every gridDim.x-th group of tokens. Counts are integers: their
// order does not matter.
template <int per>
__global__ void __launch_bounds__(32 * warps)
    balance_rows(float* partials, std::int32_t* assigned, const float* logits, std::int64_t ld,
                 const std::int32_t* experts, std::int64_t tokens, int count, int k) {
  __shared__ float sums[warps][per * 32];
  __shared__ int counts[per * 32];
  for (int e = static_cast<int>(threadIdx.y) * 32 + lane_id(); e < per * 32; e += 32 * warps) counts[e] = 0;
  __syncthreads();
  float sum[per] = {};
  for (std::int64_t token = std::int64_t{blockIdx.x} * warps + threadIdx.y; token < tokens;
       token += std::int64_t{gridDim.x} * warps) {
    Logits<per> row(logits + token * ld, count);
    row.soften();
#pragma unroll
    for (int i = 0; i < per; ++i) sum[i] += row.z[i];
    if (lane_id() < k) atomicAdd(counts + experts[token * k + lane_id()], 1);
  }
#pragma unroll
  for (int i = 0; i < per; ++i) sums[threadIdx.y][Logits<per>::expert(i)] = sum[i];
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.y) * 32 + lane_id(); e < count; e += 32 * warps) {
    float total = 0.0f;
    for (int warp = 0; warp < warps; ++warp) total += sums[warp][e];
    partials[std::int64_t{blockIdx.x} * count + e] = total;
    atomicAdd(assigned + e, counts[e]);
  }
}

__global__ void add_balance_loss(float* loss, const std::int32_t* assigned, const float* probability, int count,
                                 float scale) {
  float sum = 0.0f;
  for (int e = lane_id(); e < count; e += 32) sum += static_cast<float>(assigned[e]) * probability[e];
  sum = warp_sum(sum);
  if (lane_id() == 0) *loss += scale * sum;
}

// Calls body with the number of logits a lane holds.
template <class Body>
void with_logits_per_lane(std::int64_t experts, const Body& body) {
  if (experts <= 32) return body(std::integral_constant<int, 1>{});
  if (experts <= 64) return body(std::integral_constant<int, 2>{});
  if (experts <= 128) return body(std::integral_constant<int, 4>{});
  if (experts <= 256) return body(std::integral_constant<int, 8>{});
  body(std::integral_constant<int, most_experts / 32>{});
}

unsigned blocks_for(std::int64_t tokens) { return static_cast<unsigned>((tokens + warps - 1) / warps); }

}  // namespace

void moe_route(Exec& exec, View experts, View weights, ConstView logits, RouteWeights kind) {
  with_logits_per_lane(logits.dim(1), [&](auto per) {
    route<per><<<blocks_for(logits.dim(0)), dim3(32, warps), 0, stream_of(exec)>>>(
        pointer<std::int32_t>(experts), pointer<float>(weights), pointer<float>(logits), logits.ld(), logits.dim(0),
        static_cast<int>(logits.dim(1)), static_cast<int>(experts.dim(1)), kind);
  });
  check_launch("moe_route");
}

void moe_balance_add(Exec& exec, const Balance& balance, ConstView logits, ConstView experts, View scratch) {
  const std::int64_t tokens = logits.dim(0), count = logits.dim(1);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(scratch.dim(0), blocks_for(tokens)));
  with_logits_per_lane(count, [&](auto per) {
    balance_rows<per><<<blocks, dim3(32, warps), 0, stream_of(exec)>>>(
        pointer<float>(scratch), pointer<std::int32_t>(balance.assigned), pointer<float>(logits), logits.ld(),
        pointer<std::int32_t>(experts), tokens, static_cast<int>(count), static_cast<int>(experts.dim(1)));
  });
  check_launch("moe_balance_add");
  sum_partial_rows(stream_of(exec), pointer<float>(balance.probability), pointer<float>(scratch), blocks, count, true);
}

void moe_balance_loss(Exec& exec, View loss, const Balance& balance, float scale) {
  add_balance_loss<<<1, 32, 0, stream_of(exec)>>>(pointer<float>(loss), pointer<std::int32_t>(balance.assigned),
                                                  pointer<float>(balance.probability),
                                                  static_cast<int>(balance.assigned.dim(0)), scale);
  check_launch("moe_balance_loss");
}

void moe_route_backward(Exec& exec, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind) {
  const BackwardTask task{pointer<float>(grads.dweights),
                          pointer<std::int32_t>(experts),
                          pointer<float>(logits),
                          logits.ld(),
                          logits.dim(0),
                          pointer<std::int32_t>(grads.assigned),
                          grads.balance_factor,
                          static_cast<int>(logits.dim(1)),
                          static_cast<int>(experts.dim(1)),
                          kind};
  with_activation_type(dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    with_logits_per_lane(logits.dim(1), [&](auto per) {
      backward<per, T>
          <<<blocks_for(logits.dim(0)), dim3(32, warps), 0, stream_of(exec)>>>(pointer<T>(dlogits), dlogits.ld(), task);
    });
  });
  check_launch("moe_route_backward");
}

}  // namespace inlay::ops::cuda
