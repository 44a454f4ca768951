#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "core/philox.h"
#include "ops/gumbel.h"
#include "ops/sample.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int threads = 512, nucleus_threads = 1024;

// Intrinsics with a rounding mode in their names are never fused with their neighbours.
struct ScalarMath {
  using Float = float;
  using Word = std::uint32_t;

  static __device__ Word bits(Float x) { return __float_as_uint(x); }
  static __device__ std::int32_t signed_bits(Word x) { return static_cast<std::int32_t>(x); }
  static __device__ Float from_bits(Word x) { return __uint_as_float(x); }
  static __device__ Float number(Word x) { return __uint2float_rn(x); }
  static __device__ Float number(std::int32_t x) { return __int2float_rn(x); }
  static __device__ Float splat(float x) { return x; }
  static __device__ Float select(bool mask, Float yes, Float no) { return mask ? yes : no; }
  static __device__ Float fused(Float a, Float b, Float c) { return __fmaf_rn(a, b, c); }
};

struct Best {
  float score = -INFINITY;
  int at = 0;

  // In any order: the lower place wins where scores tie. Nothing wins against a NaN's being worse than all.
  __device__ __forceinline__ void meet(float other, int place) {
    if (other > score || (other == score && place < at)) score = other, at = place;
  }
};

struct Noise {
  Philox philox;
  std::int64_t first_sequence, position;
  const std::int32_t* positions;  // of the rows, or null
  float inverse_temperature;
};

// A block for each row. A thread takes the four entries that a Philox block serves.
template <bool random>
__global__ void __launch_bounds__(threads)
    pick(std::int32_t* ids, const float* logits, std::int64_t ld, int vocab, Noise noise) {
  __shared__ Best warps[threads / 32];
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const float* values = logits + row * ld;
  const std::int64_t position = noise.positions != nullptr ? noise.positions[row] : noise.position;
  const std::uint64_t stream = gumbel_stream(noise.first_sequence + row, position);
  Best best;
  for (int block = thread;; block += threads) {
    const int first = block / 16 * static_cast<int>(gumbel_stretch) + block % 16;
    if (first >= vocab) break;
    if constexpr (random) {
      const auto words = noise.philox.words(static_cast<std::uint64_t>(block), stream);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = first + 16 * j;
        if (at < vocab) best.meet(__fmaf_rn(values[at], noise.inverse_temperature, gumbel<ScalarMath>(words[j])), at);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (first + 16 * j < vocab) best.meet(values[first + 16 * j], first + 16 * j);
      }
    }
  }
  const auto meet_lanes = [&] {
    for (int distance = 16; distance > 0; distance /= 2) {
      const float score = __shfl_xor_sync(~0u, best.score, distance);
      best.meet(score, __shfl_xor_sync(~0u, best.at, distance));
    }
  };
  meet_lanes();
  if (thread % 32 == 0) warps[thread / 32] = best;
  __syncthreads();
  if (thread >= 32) return;
  best = thread < threads / 32 ? warps[thread] : Best{};
  meet_lanes();
  if (thread == 0) ids[row] = best.at;
}

// Numbers whose order is that of the floats.
__device__ __forceinline__ std::uint32_t order_of(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A block for each row. The nucleus ends at some logit, whose bits are found one after the other: each costs a pass
// over the row, which the caches hold.
__global__ void __launch_bounds__(nucleus_threads)
    nucleus(float* logits, std::int64_t ld, int vocab, float inverse_temperature, double top_p) {
  __shared__ double sums[2][32];
  __shared__ float tops[32];
  float* row = logits + std::int64_t{blockIdx.x} * ld;
  const int thread = static_cast<int>(threadIdx.x);
  float top = -INFINITY;
  for (int i = thread; i < vocab; i += nucleus_threads) top = fmaxf(top, row[i]);
  for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
  if (thread % 32 == 0) tops[thread / 32] = top;
  __syncthreads();
  for (const float other : tops) top = fmaxf(top, other);

  int turn = 0;
  // What the tokens from that one on have in all, likelier ones included.
  const auto mass_from = [&](std::uint32_t least) {
    double mass = 0;
    for (int i = thread; i < vocab; i += nucleus_threads) {
      const float x = row[i];
      if (order_of(x) >= least) mass += static_cast<double>(expf((x - top) * inverse_temperature));
    }
    turn ^= 1;
    return block_sum(mass, sums[turn]);
  };
  const double wanted = top_p * mass_from(0);
  std::uint32_t last = 0;
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (mass_from(last | bit) >= wanted) last |= bit;
  }
  double left = wanted - (last == 0xffffffffu ? 0.0 : mass_from(last + 1)), alike = 0;
  for (int i = thread; i < vocab; i += nucleus_threads) {
    const std::uint32_t order = order_of(row[i]);
    if (order < last) row[i] = -INFINITY;
    if (order == last) alike += 1;
  }
  alike = block_sum(alike, sums[turn ^ 1]);
  // Of those that are as likely as the last, the first ones; there are seldom several.
  if (thread != 0 || alike == 1) return;
  for (int i = 0; i < vocab; ++i) {
    const float x = row[i];
    if (order_of(x) != last) continue;
    if (left <= 0) row[i] = -INFINITY;
    left -= static_cast<double>(expf((x - top) * inverse_temperature));
  }
}

}  // namespace

void keep_nucleus(Exec& exec, View logits, float temperature, float top_p) {
  nucleus<<<static_cast<unsigned>(logits.dim(0)), nucleus_threads, 0, stream_of(exec)>>>(
      pointer<float>(logits), logits.ld(), static_cast<int>(logits.dim(1)), 1.0f / temperature,
      static_cast<double>(top_p));
  check_launch("keep_nucleus");
}

void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec) {
  const auto rows = static_cast<unsigned>(logits.dim(0));
  const auto vocab = static_cast<int>(logits.dim(1));
  const bool random = spec.temperature != 0.0f;
  const Noise noise{Philox{spec.seed}, spec.first_sequence, spec.position, pointer<std::int32_t>(spec.positions),
                    random ? 1.0f / spec.temperature : 1.0f};
  const auto kernel = random ? pick<true> : pick<false>;
  kernel<<<rows, threads, 0, stream_of(exec)>>>(pointer<std::int32_t>(ids), pointer<float>(logits), logits.ld(), vocab,
                                                noise);
  check_launch("sample");
}

}  // namespace inlay::ops::cuda
