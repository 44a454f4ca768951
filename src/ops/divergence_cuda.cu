#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/divergence.h"
#include "ops/logit_vector.cuh"
#include "ops/row_partial.cuh"

// One block a row, which it reads three times: for the two sums of exponentials, for the divergence, and to write dZ.
// Later readings find most of it in the second-level cache.
namespace inlay::ops::cuda {

namespace {

using backend::cuda::check_launch;
using backend::cuda::pointer;
using backend::cuda::stream_of;

constexpr int threads = 512;
constexpr int warps = threads / 32;

struct Args {
  void* logits;
  const void* others;
  std::int64_t ld, others_ld;
  int columns;
  const std::int32_t* positions;
  std::int64_t first;
  const std::int32_t* targets;
  const float *token_weights, *weights;
  const LossScales* scales;
  float *max, *log_sum, *target, *spread, *divergence;
  std::int32_t* argmax;
  float smoothing, softcap, others_softcap, gain;
  DivergenceSpec spec;
  bool gradient;
};

// What a thread, and then the block, knows of a row of logits: the largest, where it stands first, and the sums of
// exponentials against it at temperature 1 and at the divergence's.
struct Sums {
  float max, sum, tempered;
  int column;

  static __device__ Sums none() { return {-INFINITY, 0.0f, 0.0f, 0x7fffffff}; }
  __device__ void meet(float z, int at, float inverse) {
    if (z > max) {
      if (max != -INFINITY) {
        sum *= expf(max - z);
        tempered *= expf((max - z) * inverse);
      }
      max = z;
      column = at;
    }
    if (z == -INFINITY) return;
    const float e = expf(z - max);
    sum += e;
    tempered += inverse == 1.0f ? e : expf((z - max) * inverse);
  }
  __device__ void join(const Sums& other, float inverse) {
    if (other.max == -INFINITY) return;
    const float top = fmaxf(max, other.max);
    const float mine = max == -INFINITY ? 0.0f : expf(max - top), theirs = expf(other.max - top);
    const float mine_t = max == -INFINITY ? 0.0f : expf((max - top) * inverse);
    sum = sum * mine + other.sum * theirs;
    tempered = tempered * mine_t + other.tempered * expf((other.max - top) * inverse);
    column = max > other.max ? column : other.max > max ? other.column : min(column, other.column);
    max = top;
  }
};

// In the order of the warps and of their lanes, so that the bits do not depend on who comes first; known to all.
__device__ Sums over_block(Sums mine, float inverse) {
  __shared__ Sums partial[warps];
  for (int distance = 16; distance > 0; distance /= 2) {
    const Sums other{__shfl_down_sync(~0u, mine.max, distance), __shfl_down_sync(~0u, mine.sum, distance),
                     __shfl_down_sync(~0u, mine.tempered, distance), __shfl_down_sync(~0u, mine.column, distance)};
    mine.join(other, inverse);
  }
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  Sums all = partial[0];
  for (int w = 1; w < warps; ++w) all.join(partial[w], inverse);
  return all;
}
__device__ float over_block(float value) {
  __shared__ float partial[warps];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(~0u, value, distance);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float all = partial[0];
  for (int w = 1; w < warps; ++w) all += partial[w];
  return all;
}

__device__ float capped(float z, float cap) { return cap > 0 ? cap * tanhf(z / cap) : z; }
__device__ float cap_slope(float z, float cap) {
  const float e = expf(fabsf(z) * (-2.0f / cap));
  return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

// As many of the other model's logits as a vector of T has.
template <class T, class Other>
__device__ void unpack_others(float (&u)[logits_a_vector<T>], const Other* row, int index) {
  if constexpr (sizeof(T) == sizeof(Other)) {
    unpack<T>(u, reinterpret_cast<const uint4*>(row)[index]);
  } else {
    constexpr int width = logits_a_vector<T>, part = logits_a_vector<Other>;
#pragma unroll
    for (int i = 0; i < width / part; ++i) {
      float some[part];
      unpack<Other>(some, reinterpret_cast<const uint4*>(row)[index * (width / part) + i]);
#pragma unroll
      for (int j = 0; j < part; ++j) u[i * part + j] = some[j];
    }
  }
}

template <class T, class Other>
__global__ void __launch_bounds__(threads) divergence_rows(const Args args) {
  constexpr int width = logits_a_vector<T>;
  const std::int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(args.logits) + row * args.ld;
  auto* vectors = reinterpret_cast<uint4*>(logits);
  const Other* others = static_cast<const Other*>(args.others) + row * args.others_ld;
  const int count = (args.columns + width - 1) / width;
  const float inverse = 1.0f / args.spec.temperature;
  const std::int64_t at = args.positions == nullptr ? args.first + row : args.positions[row];
  const int y = args.targets[at];
  const float raw_target = to_float(logits[y]), target = capped(raw_target, args.softcap);

  Sums ours = Sums::none(), theirs = Sums::none();
  for (int index = threadIdx.x; index < count; index += threads) {
    float z[width], u[width];
    unpack<T>(z, vectors[index]);
    unpack_others<T>(u, others, index);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const int v = index * width + i;
      if (v >= args.columns) break;
      ours.meet(capped(z[i], args.softcap), v, inverse);
      theirs.meet(capped(u[i], args.others_softcap), v, inverse);
    }
  }
  ours = over_block(ours, inverse);
  theirs = over_block(theirs, inverse);
  const float log_sum = logf(ours.sum), lse = ours.max + log_sum;
  const float own_lse = ours.max * inverse + logf(ours.tempered);
  const float others_lse = theirs.max * inverse + logf(theirs.tempered);

  // Where nothing is known of the other model's prediction there is nothing to diverge from.
  const bool known = theirs.max != -INFINITY;
  float divergence = 0, own = 0, spread = 0;
  for (int index = threadIdx.x; index < count; index += threads) {
    float z[width], u[width];
    unpack<T>(z, vectors[index]);
    unpack_others<T>(u, others, index);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if (index * width + i >= args.columns) break;
      const float value = capped(z[i], args.softcap);
      spread += target - value;
      if (!known) continue;
      const DivergenceTerms terms = divergence_terms(args.spec, value * inverse - own_lse,
                                                     capped(u[i], args.others_softcap) * inverse - others_lse);
      divergence += terms.divergence;
      own += terms.own;
    }
  }
  divergence = over_block(divergence);
  if (args.spec.kind != DivergenceKind::forward) own = over_block(own);
  if (args.spread != nullptr) spread = over_block(spread);
  if (threadIdx.x == 0) {
    args.max[row] = ours.max;
    args.log_sum[row] = log_sum;
    args.target[row] = target;
    args.divergence[row] = divergence;
    if (args.spread != nullptr) args.spread[row] = spread;
    if (args.argmax != nullptr) args.argmax[row] = min(ours.column, args.columns - 1);
  }
  if (!args.gradient) return;

  float row_scale = args.gain, other_scale = args.gain;
  if (args.token_weights != nullptr) row_scale *= args.token_weights[at];
  if (args.weights != nullptr) other_scale *= args.weights[at];
  const LossScales scales = *args.scales;
  const RowFactors factors =
      row_factors(scales, 1.0f, scales.class_sum, args.smoothing, static_cast<float>(args.columns), lse, row_scale);
  const float outer = other_scale * scales.ce_gradient * args.spec.weight * args.spec.temperature;
  const float down = target - lse;
  const float own_entry = factors.own * expm1f(down) + expf(down) * (factors.all - factors.own) - factors.each;
  for (int index = threadIdx.x; index < count; index += threads) {
    float z[width], u[width];
    unpack<T>(z, vectors[index]);
    unpack_others<T>(u, others, index);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const int v = index * width + i;
      if (v >= args.columns) break;
      const float value = capped(z[i], args.softcap);
      const float ce = v == y ? own_entry : expf(value - lse) * factors.all - factors.each;
      float dz = args.spec.ce_weight * ce;
      if (known)
        dz += outer * divergence_slope(args.spec, value * inverse - own_lse,
                                       capped(u[i], args.others_softcap) * inverse - others_lse, own);
      if (args.softcap > 0) dz *= cap_slope(z[i], args.softcap);
      z[i] = dz;
    }
    vectors[index] = pack<T>(z);
  }
}

template <class T, class Other>
void start(Exec& exec, const Args& args, std::int64_t rows) {
  divergence_rows<T, Other><<<static_cast<unsigned>(rows), threads, 0, stream_of(exec)>>>(args);
  check_launch("divergence_gradient");
}

}  // namespace

void divergence_gradient(Exec& exec, const DivergenceChunk& chunk) {
  const SoftmaxChunk& own = chunk.own;
  const Args args{.logits = own.logits.data(),
                  .others = chunk.others.data(),
                  .ld = own.logits.ld(),
                  .others_ld = chunk.others.ld(),
                  .columns = static_cast<int>(own.logits.dim(1)),
                  .positions = pointer<std::int32_t>(own.positions),
                  .first = own.first,
                  .targets = pointer<std::int32_t>(own.targets),
                  .token_weights = pointer<float>(own.token_weights),
                  .weights = pointer<float>(chunk.weights),
                  .scales = static_cast<const LossScales*>(own.scales.data()),
                  .max = pointer<float>(own.statistics.max),
                  .log_sum = pointer<float>(own.statistics.log_sum),
                  .target = pointer<float>(own.statistics.target),
                  .spread = pointer<float>(own.statistics.spread),
                  .divergence = pointer<float>(chunk.divergence),
                  .argmax = pointer<std::int32_t>(own.statistics.argmax),
                  .smoothing = own.label_smoothing,
                  .softcap = own.softcap,
                  .others_softcap = chunk.others_softcap,
                  .gain = own.gain,
                  .spec = chunk.spec,
                  .gradient = own.gradient};
  const std::int64_t rows = own.logits.dim(0);
  const bool wide = chunk.others.dtype() == DType::f32;
  switch (own.logits.dtype()) {
    case DType::f32: return start<float, float>(exec, args, rows);
    case DType::bf16:
      return wide ? start<__nv_bfloat16, float>(exec, args, rows)
                  : start<__nv_bfloat16, __nv_bfloat16>(exec, args, rows);
    case DType::f16: return wide ? start<__half, float>(exec, args, rows) : start<__half, __half>(exec, args, rows);
    default: INLAY_ASSERT(false, "divergence_gradient of {}", name_of(own.logits.dtype()));
  }
}

}  // namespace inlay::ops::cuda
