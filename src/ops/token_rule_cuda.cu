#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/logit_vector.cuh"
#include "ops/row_partial.cuh"
#include "ops/token_rule.h"

namespace inlay::ops::cuda {

namespace {

using backend::cuda::check_launch;
using backend::cuda::pointer;
using backend::cuda::stream_of;

constexpr int threads = 512;
constexpr int warps = threads / 32;
constexpr int held_values = 2048;  // candidates that a block keeps; more are read from the row again

struct Args {
  const void* logits;
  std::int64_t ld;
  int columns;
  const std::int32_t* positions;
  std::int64_t first, count;
  const float* token_weights;
  const float *max, *log_sum, *target;
  float softcap;
  float* weights;
  TokenRule rule;
  int most_likely;
  const float* temperature;
  float least;
};

__device__ std::int64_t position(const Args& args, std::int64_t row) {
  return args.positions == nullptr ? args.first + row : args.positions[row];
}
__device__ void write(const Args& args, std::int64_t row, float factor) {
  const std::int64_t at = position(args, row);
  args.weights[at] = (args.token_weights == nullptr ? 1.0f : args.token_weights[at]) * factor;
}

// What the label's own probability decides.
__global__ void by_probability(const Args args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= args.count) return;
  const float log_p = args.target[row] - args.max[row] - args.log_sum[row];
  write(args, row, args.rule == TokenRule::dft ? expf(log_p) : fmaxf(expf(log_p / *args.temperature), args.least));
}

// The largest value of the block's that is below a bound, and how many of them there are; known to all.
struct Largest {
  float value;
  int count;
};
__device__ Largest joined(const Largest& a, const Largest& b) {
  if (a.value > b.value) return a;
  if (b.value > a.value) return b;
  return {a.value, a.count + b.count};
}
__device__ Largest over_block(Largest mine) {
  __shared__ Largest partial[warps];
  for (int distance = 16; distance > 0; distance /= 2) {
    mine = joined(mine, {__shfl_xor_sync(~0u, mine.value, distance), __shfl_xor_sync(~0u, mine.count, distance)});
  }
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  Largest all = partial[0];
  for (int w = 1; w < warps; ++w) all = joined(all, partial[w]);
  return all;
}

// Entropy of the largest values, by taking them out from above; `each` calls its argument with all of a thread's
// values.
template <class Each>
__device__ float entropy_share(const Args& args, int wanted, Each each) {
  const auto capped = [&](float z) { return args.softcap > 0 ? args.softcap * tanhf(z / args.softcap) : z; };
  float bound = INFINITY, top = 0, sum = 0, moment = 0;
  for (int taken = 0; taken < wanted;) {
    Largest mine{-INFINITY, 0};
    each([&](float z) {
      if (z < bound && z >= mine.value) mine = z > mine.value ? Largest{z, 1} : Largest{z, mine.count + 1};
    });
    const Largest next = over_block(mine);
    if (next.count == 0 || next.value == -INFINITY) break;  // fewer finite logits than wanted
    const float z = capped(next.value);
    if (taken == 0) top = z;
    const int copies = min(next.count, wanted - taken);
    const float e = expf(z - top) * static_cast<float>(copies);
    sum += e;
    moment += e * (z - top);
    taken += copies;
    bound = next.value;
  }
  return sum > 0 ? (logf(sum) - moment / sum) / logf(static_cast<float>(wanted)) : 0.0f;
}

// One block a row. Among the threads' own largest values, the wanted-th is a bound below which nothing is needed: what
// reaches it is kept, and that is seldom more than wanted.
template <class T>
__global__ void __launch_bounds__(threads) by_entropy(const Args args) {
  constexpr int width = logits_a_vector<T>;
  __shared__ float held[held_values];
  __shared__ int kept;
  const std::int64_t row = blockIdx.x;
  const auto* vectors = reinterpret_cast<const uint4*>(static_cast<const T*>(args.logits) + row * args.ld);
  const int count = (args.columns + width - 1) / width;
  const int wanted = min(args.most_likely, args.columns);
  const auto each_of_row = [&](auto body) {
    for (int index = threadIdx.x; index < count; index += threads) {
      float z[width];
      unpack<T>(z, vectors[index]);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        if (index * width + i < args.columns) body(z[i]);
      }
    }
  };
  float own = -INFINITY;
  each_of_row([&](float z) { own = fmaxf(own, z); });
  float bound = INFINITY;
  for (int taken = 0; taken < wanted;) {
    const Largest next = over_block(own < bound ? Largest{own, 1} : Largest{-INFINITY, 0});
    bound = next.value;
    if (next.count == 0 || bound == -INFINITY) break;  // fewer threads than wanted have a value: keep all
    taken += next.count;
  }
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  each_of_row([&](float z) {
    if (z < bound) return;
    const int slot = atomicAdd(&kept, 1);
    if (slot < held_values) held[slot] = z;
  });
  __syncthreads();
  // The order in the buffer changes from run to run; what is taken from it goes by value alone.
  const int total = kept;
  const float share = total <= held_values ? entropy_share(args, wanted,
                                                           [&](auto body) {
                                                             for (int i = threadIdx.x; i < total; i += threads)
                                                               body(held[i]);
                                                           })
                                           : entropy_share(args, wanted, each_of_row);
  if (threadIdx.x == 0) write(args, row, share);
}

template <class T>
void start(Exec& exec, const Args& args) {
  if (args.rule == TokenRule::eaft) {
    by_entropy<T><<<static_cast<unsigned>(args.count), threads, 0, stream_of(exec)>>>(args);
  } else {
    by_probability<<<static_cast<unsigned>((args.count + 255) / 256), 256, 0, stream_of(exec)>>>(args);
  }
  check_launch("token_rule");
}

}  // namespace

void token_rule(Exec& exec, const RuledRows& rows, const TokenRuleSpec& spec) {
  const Args args{.logits = rows.logits.data(),
                  .ld = rows.logits.ld(),
                  .columns = static_cast<int>(rows.logits.dim(1)),
                  .positions = pointer<std::int32_t>(rows.positions),
                  .first = rows.first,
                  .count = rows.logits.dim(0),
                  .token_weights = pointer<float>(rows.token_weights),
                  .max = pointer<float>(rows.statistics.max),
                  .log_sum = pointer<float>(rows.statistics.log_sum),
                  .target = pointer<float>(rows.statistics.target),
                  .softcap = rows.softcap,
                  .weights = pointer<float>(rows.weights),
                  .rule = spec.rule,
                  .most_likely = spec.most_likely,
                  .temperature = pointer<float>(spec.temperature),
                  .least = spec.least};
  switch (rows.logits.dtype()) {
    case DType::f32: return start<float>(exec, args);
    case DType::bf16: return start<__nv_bfloat16>(exec, args);
    case DType::f16: return start<__half>(exec, args);
    default: INLAY_ASSERT(false, "token_rule of {}", name_of(rows.logits.dtype()));
  }
}

}  // namespace inlay::ops::cuda
