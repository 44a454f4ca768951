#include <cuda_pipeline.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/logit_vector.cuh"
#include "ops/row_partial.cuh"
#include "ops/softmax_gradient.h"

// A row of logits stays in the shared memory of one block, or of a cluster of blocks, from the one time it is read
// until its gradient is written: traffic is one read and one write of the chunk. Rows beyond what a cluster holds are
// read twice (streamed_rows).
namespace inlay::ops::cuda {

namespace {

using backend::cuda::pointer;

constexpr int most_threads = 512;
constexpr int least_blocks = 3;        // of that size on an SM at a time: bounds the registers
constexpr int vectors_a_block = 2048;  // 32 KiB: small, so that an SM loads some rows while it works on others
constexpr int vectors_a_thread = 8;

// SoftmaxChunk as raw pointers.
struct Args {
  void* logits;
  std::int64_t ld;
  int columns;
  const std::int32_t* positions;
  std::int64_t first;
  const std::int32_t* targets;
  const void* bias;
  const float *class_weights, *token_weights, *row_upstream;
  const LossScales* scales;
  float *max, *log_sum, *target, *spread;
  std::int32_t* argmax;
  float smoothing, softcap, gain;
  bool gradient;
};

// Exponentials against a base as one fma and one ex2: 2^(z·log2 e - high). The part of base·log2 e that `high` cannot
// hold is the same for all of them, so it is put right in the sum.
struct Base {
  float high, correction;
  __device__ explicit Base(float base) {
    base = base == -INFINITY ? 0.0f : base;
    high = base * log2_e;
    correction = exp2f(-fmaf(base, log2_e, -high));
  }
  __device__ float exp(float z) const { return exp2_fast(fmaf(z, log2_e, -high)); }
  static __device__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
};

// ---- rows ----

// `plain` leaves out what is read column by column only where asked for: bias, smoothing, softcap.
template <class T, bool plain>
struct RowReader {
  static constexpr int width = logits_a_vector<T>;
  const Args& args;

  // Sixteen bytes of logits with the bias added; columns past the end count as nothing.
  __device__ void raw(float (&z)[width], uint4 bits, int column) const {
    unpack<T>(z, bits);
    if constexpr (!plain) {
      if (args.bias == nullptr) return;
      for (int i = 0; i < width; ++i) {
        if (column + i < args.columns) z[i] += to_float(static_cast<const T*>(args.bias)[column + i]);
      }
    }
  }
  __device__ float capped(float z) const {
    if constexpr (plain) return z;
    return args.softcap > 0 ? args.softcap * tanhf(z / args.softcap) : z;
  }
  // The derivative of the capped logit by the raw one: 1 - tanh², without the cancellation.
  __device__ float slope(float z) const {
    const float e = exp2f(fabsf(z) * (-2.0f * log2_e / args.softcap));
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
  }
  __device__ float class_weight(int column) const {
    return args.class_weights == nullptr ? 1.0f : __ldg(args.class_weights + column);
  }

  // Adds the vector to the partial of this warp, whose max is already that of all its vectors.
  __device__ void add(Partial& partial, const Base& base, uint4 bits, int column, float target) const {
    float z[width];
    raw(z, bits, column);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if constexpr (plain) {
        partial.sum += base.exp(z[i]);
      } else if (column + i < args.columns) {  // softcap makes something of minus infinity
        const float value = capped(z[i]);
        partial.sum += base.exp(value);
        if (args.smoothing > 0) partial.spread += class_weight(column + i) * (target - value);
      }
    }
  }
  __device__ float largest(uint4 bits, int column) const {
    float z[width];
    raw(z, bits, column);
    float result = z[0];
#pragma unroll
    for (int i = 1; i < width; ++i) result = fmaxf(result, z[i]);
    return result;
  }
  // The first column of this vector that holds the value, or `otherwise`.
  __device__ int find(uint4 bits, int column, float value, int otherwise) const {
    float z[width];
    raw(z, bits, column);
    int result = otherwise;
#pragma unroll
    for (int i = width - 1; i >= 0; --i) {
      if (z[i] == value) result = min(otherwise, column + i);
    }
    return result;
  }
};

// What a thread needs to write its part of dZ.
struct RowGradient {
  Base base;
  float scale;  // p_v · all = exp(z_v) · scale
  float each;   // smoothing's part of every column
  int target;
  float own;  // the target's own entry

  template <class T, bool plain>
  __device__ uint4 vector(const RowReader<T, plain>& reader, uint4 bits, int column) const {
    constexpr int width = logits_a_vector<T>;
    float z[width];
    reader.raw(z, bits, column);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float value = reader.capped(z[i]);
      float dz = base.exp(value) * scale;
      if constexpr (!plain) {
        if (each != 0.0f && column + i < reader.args.columns) dz -= each * reader.class_weight(column + i);
        if (reader.args.softcap > 0) dz *= reader.slope(z[i]);
      }
      z[i] = dz;
    }
    if (static_cast<unsigned>(target - column) < static_cast<unsigned>(width)) {
#pragma unroll
      for (int i = 0; i < width; ++i) z[i] = column + i == target ? own : z[i];
    }
    return pack<T>(z);
  }
};

template <class T>
__device__ uint4* row_vectors(const Args& args, std::int64_t row) {
  return reinterpret_cast<uint4*>(static_cast<T*>(args.logits) + row * args.ld);
}

// Where the row stands, its label and the label's logit.
template <class T, bool plain>
struct RowPlace {
  std::int64_t at;
  int target;
  float raw_target, target_logit;  // before and after softcap

  __device__ RowPlace(const RowReader<T, plain>& reader, std::int64_t row) {
    const Args& args = reader.args;
    const T* logits = static_cast<const T*>(args.logits) + row * args.ld;
    at = args.positions == nullptr ? args.first + row : args.positions[row];
    target = args.targets[at];
    raw_target = to_float(logits[target]);
    if (args.bias != nullptr) raw_target += to_float(static_cast<const T*>(args.bias)[target]);
    target_logit = reader.capped(raw_target);
  }
};

// Writes the row's statistics and prepares its gradient.
template <class T, bool plain>
__device__ RowGradient finish_row(const RowReader<T, plain>& reader, const RowPlace<T, plain>& place, std::int64_t row,
                                  const Partial& total, bool writes) {
  const Args& args = reader.args;
  const float log_sum = logf(total.sum);
  if (writes) {
    args.max[row] = total.max;
    args.log_sum[row] = log_sum;
    args.target[row] = place.target_logit;
    if (args.spread != nullptr) args.spread[row] = total.spread;
    if (args.argmax != nullptr) args.argmax[row] = min(total.column, args.columns - 1);
  }
  float row_scale = args.gain;
  if (args.token_weights != nullptr) row_scale *= args.token_weights[place.at];
  if (args.row_upstream != nullptr) row_scale *= args.row_upstream[place.at];
  const float class_weight = reader.class_weight(place.target);
  const LossScales scales = *args.scales;
  const RowFactors factors = row_factors(scales, class_weight, scales.class_sum, args.smoothing,
                                         static_cast<float>(args.columns), total.max + log_sum, row_scale);
  RowGradient gradient{Base(total.max), 0.0f, factors.each, place.target, 0.0f};
  gradient.scale = factors.all / total.sum * gradient.base.correction;
  const float down = place.target_logit - total.max - log_sum;  // log p_y
  gradient.own = factors.own * expm1f(down) + expf(down) * (factors.all - factors.own) - factors.each * class_weight;
  if (args.softcap > 0) gradient.own *= reader.slope(place.raw_target);
  return gradient;
}

// One cluster a row. A thread reads back only what it has put into shared memory itself, so nobody waits for others
// until the sums are made.
template <class T, bool plain>
__global__ void __launch_bounds__(most_threads, least_blocks) resident_rows(const Args args) {
  extern __shared__ uint4 held[];
  constexpr int width = logits_a_vector<T>;
  const RowReader<T, plain> reader{args};
  const int size = cluster_size(), rank = cluster_rank();
  const std::int64_t row = blockIdx.x / size;
  const int count = (args.columns + width - 1) / width;
  const int start = rank * blockDim.x + threadIdx.x, stride = size * blockDim.x;
  const auto each_vector = [&](auto body) {
    int slot = threadIdx.x;
#pragma unroll 4
    for (int index = start; index < count; index += stride, slot += blockDim.x) body(slot, index);
  };

  uint4* vectors = row_vectors<T>(args, row);
  each_vector([&](int slot, int index) { __pipeline_memcpy_async(held + slot, vectors + index, sizeof(uint4)); });
  __pipeline_commit();
  const RowPlace<T, plain> place(reader, row);
  __pipeline_wait_prior(0);
  const int last = count - 1 - start;
  if (args.columns % width != 0 && last >= 0 && last % stride == 0) {
    mask_tail<T>(held[threadIdx.x + last / stride * blockDim.x], args.columns - (count - 1) * width);
  }

  Partial partial = empty_partial();
  each_vector(
      [&](int slot, int index) { partial.top = fmaxf(partial.top, reader.largest(held[slot], index * width)); });
  if (args.argmax != nullptr) {
    each_vector([&](int slot, int index) {
      partial.column = reader.find(held[slot], index * width, partial.top, partial.column);
    });
  }
  partial.max = warp_max(partial.top == -INFINITY ? -INFINITY : reader.capped(partial.top));
  const Base base(partial.max);
  each_vector([&](int slot, int index) { reader.add(partial, base, held[slot], index * width, place.target_logit); });
  partial.sum *= base.correction;

  const Partial total = row_total(partial);
  const RowGradient gradient = finish_row(reader, place, row, total, rank == 0 && threadIdx.x == 0);
  if (args.gradient) {
    each_vector([&](int slot, int index) { vectors[index] = gradient.vector(reader, held[slot], index * width); });
  }
  cluster_wait();
}

// One block a row of any length: the sum is kept against a running maximum, and the row is read again for dZ.
template <class T>
__global__ void __launch_bounds__(most_threads, least_blocks) streamed_rows(const Args args) {
  constexpr int width = logits_a_vector<T>;
  const RowReader<T, false> reader{args};
  const std::int64_t row = blockIdx.x;
  const int count = (args.columns + width - 1) / width;
  uint4* vectors = row_vectors<T>(args, row);
  const RowPlace<T, false> place(reader, row);
  const auto vector_at = [&](int index) {
    uint4 bits = vectors[index];
    if (index == count - 1 && args.columns % width != 0) mask_tail<T>(bits, args.columns - index * width);
    return bits;
  };

  Partial partial = empty_partial();
  for (int index = threadIdx.x; index < count; index += blockDim.x) {
    const uint4 bits = vector_at(index);
    const float top = reader.largest(bits, index * width);
    if (top > partial.top) {
      partial.column = args.argmax == nullptr ? 0 : reader.find(bits, index * width, top, 0x7fffffff);
      partial.top = top;
      const float max = reader.capped(top);
      partial.sum = scaled(partial.sum, partial.max, max);
      partial.max = max;
    }
    const Base base(partial.max);
    Partial added = empty_partial();
    reader.add(added, base, bits, index * width, place.target_logit);
    partial.sum += added.sum * base.correction;
    partial.spread += added.spread;
  }
  const Partial total = row_total(partial);
  const RowGradient gradient = finish_row(reader, place, row, total, threadIdx.x == 0);
  if (args.gradient) {
    for (int index = threadIdx.x; index < count; index += blockDim.x) {
      vectors[index] = gradient.vector(reader, vector_at(index), index * width);
    }
  }
  cluster_wait();
}

// ---- launching ----

struct Launch {
  int blocks_a_row, threads, shared_bytes;  // no shared memory: streamed
};

// The blocks of a row and their threads, for rows of `count` vectors.
Launch launch_for(int count, const cudaDeviceProp& device) {
  int blocks = 1;
  while (device.major >= 9 && blocks < most_blocks_a_row && blocks * vectors_a_block < count) blocks *= 2;
  const auto threads_for = [&](int vectors) {
    return std::clamp((vectors / vectors_a_thread + 31) / 32 * 32, 32, most_threads);
  };
  const int threads = threads_for((count + blocks - 1) / blocks);
  const int rounds = (count + blocks * threads - 1) / (blocks * threads);
  const std::int64_t bytes = std::int64_t{rounds} * threads * static_cast<std::int64_t>(sizeof(uint4));
  const auto most_bytes = static_cast<std::int64_t>(device.sharedMemPerBlockOptin) - 2048;  // less the partials
  if (bytes > most_bytes) return {1, most_threads, 0};
  return {blocks, threads, static_cast<int>(bytes)};
}

template <class Kernel>
void launch(Kernel kernel, const Launch& shape, std::int64_t rows, const Args& args, cudaStream_t stream) {
  if (shape.shared_bytes > 40 * 1024) {
    backend::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
                         "softmax_gradient");
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * shape.blocks_a_row));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(shape.blocks_a_row), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = shape.blocks_a_row > 1 ? 1 : 0;
  backend::cuda::check(cudaLaunchKernelEx(&config, kernel, args), "softmax_gradient");
}

template <class T>
void rows_of(Exec& exec, const Args& args, std::int64_t rows) {
  backend::cuda::GpuContext& gpu = backend::cuda::gpu(exec);
  const Launch shape = launch_for((args.columns + logits_a_vector<T> - 1) / logits_a_vector<T>, gpu.properties());
  // Class weights alone are a factor of the row; only smoothing reads them column by column.
  const bool plain = args.bias == nullptr && args.softcap == 0 && args.smoothing == 0;
  const auto start = [&](auto kernel) { launch(kernel, shape, rows, args, gpu.stream()); };
  if (shape.shared_bytes == 0) return start(streamed_rows<T>);
  return plain ? start(resident_rows<T, true>) : start(resident_rows<T, false>);
}

}  // namespace

void softmax_gradient(Exec& exec, const SoftmaxChunk& chunk) {
  const View& logits = chunk.logits;
  const std::int64_t vector = 16 / static_cast<std::int64_t>(size_of(logits.dtype()));
  INLAY_ASSERT(logits.ld() % vector == 0 && reinterpret_cast<std::uintptr_t>(logits.data()) % 16 == 0 &&
                   logits.ld() >= (logits.dim(1) + vector - 1) / vector * vector,
               "softmax_gradient: rows of logits {} are not aligned to 16 bytes", logits.shape().str());
  const RowStatistics& statistics = chunk.statistics;
  const Args args{.logits = logits.data(),
                  .ld = logits.ld(),
                  .columns = static_cast<int>(logits.dim(1)),
                  .positions = pointer<std::int32_t>(chunk.positions),
                  .first = chunk.first,
                  .targets = pointer<std::int32_t>(chunk.targets),
                  .bias = chunk.bias.data(),
                  .class_weights = pointer<float>(chunk.class_weights),
                  .token_weights = pointer<float>(chunk.token_weights),
                  .row_upstream = pointer<float>(chunk.row_upstream),
                  .scales = static_cast<const LossScales*>(chunk.scales.data()),
                  .max = pointer<float>(statistics.max),
                  .log_sum = pointer<float>(statistics.log_sum),
                  .target = pointer<float>(statistics.target),
                  .spread = pointer<float>(statistics.spread),
                  .argmax = pointer<std::int32_t>(statistics.argmax),
                  .smoothing = chunk.label_smoothing,
                  .softcap = chunk.softcap,
                  .gain = chunk.gain,
                  .gradient = chunk.gradient};
  switch (logits.dtype()) {
    case DType::f32: return rows_of<float>(exec, args, logits.dim(0));
    case DType::bf16: return rows_of<__nv_bfloat16>(exec, args, logits.dim(0));
    case DType::f16: return rows_of<__half>(exec, args, logits.dim(0));
    default: INLAY_ASSERT(false, "softmax_gradient of {}", name_of(logits.dtype()));
  }
}

}  // namespace inlay::ops::cuda
