#include <cuda_fp8.h>

#include <algorithm>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/quant_codes.h"
#include "ops/quantised.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int threads = 256;

__device__ const std::array<float, 16> nf4_table = quant::nf4_values, e2m1_table = quant::e2m1_values;
__device__ const std::array<float, 256> dynamic_table = quant::dynamic_values;
__device__ const std::array<float, 255> dynamic_middles = quant::dynamic_midpoints;
__constant__ const std::array<float, 15> nf4_middles = quant::nf4_midpoints;

// ---- opening --------------------------------------------------------------------------------------------------------

// A thread opens eight neighbours at a time, so that a warp's stores are whole lines, and has four such loads under
// way. Sixteen numbers lie in sixteen banks of shared memory: whatever the codes, looking them up is free of conflicts.

constexpr int most_matrices = 64;  // of a launch: their pointers travel in the kernel's parameters
constexpr int in_flight = 4;

struct Source {
  const std::uint8_t* codes;
  const void* scales;
  const float *nested, *offset;
};
struct Sources {
  Source matrix[most_matrices];
};

// The part of every matrix that is opened, in vectors of V numbers.
struct Stretch {
  std::uint32_t vectors;       // of one matrix
  std::uint32_t first_vector;  // of the flattened matrix
  std::uint32_t row_vectors;   // of a row; formats with a scale a row alone know rows
  std::uint32_t first_row;
};

template <QuantFormat format>
struct Tables {
  static constexpr bool nested = format == QuantFormat::nf4;
  static constexpr bool pairs = nested || format == QuantFormat::mxfp4;
  float values[pairs ? 16 : 1];
  float scales[nested ? 256 : 1];

  __device__ __forceinline__ void fill() {
    const int i = static_cast<int>(threadIdx.x);
    if constexpr (pairs) {
      if (i < 16) values[i] = nested ? nf4_table[i] : e2m1_table[i];
    }
    if constexpr (nested) scales[i] = dynamic_table[i];
    if constexpr (pairs) __syncthreads();
  }
};

// The codes of V numbers as they lie in memory, and what their scale is made from.
template <QuantFormat format, int V>
struct Coded {
  static constexpr bool pairs = Tables<format>::pairs;
  using Word = std::conditional_t<V == 1, std::uint8_t, std::conditional_t<pairs, std::uint32_t, uint2>>;
  Word word;
  float scale;              // nf4: of the nested block
  std::uint8_t scale_code;  // nf4, mxfp4

  __device__ __forceinline__ void load(const Source& from, const Stretch& stretch, std::uint32_t at) {
    const std::uint32_t vector = stretch.first_vector + at;
    word = reinterpret_cast<const Word*>(from.codes)[V == 1 && pairs ? vector / 2 : vector];
    if constexpr (format == QuantFormat::nf4) {
      const std::uint32_t block = vector / (static_cast<std::uint32_t>(quant::nf4_block) / V);
      scale_code = static_cast<const std::uint8_t*>(from.scales)[block];
      scale = from.nested[block / static_cast<std::uint32_t>(quant::nested_block)];
    } else if constexpr (format == QuantFormat::mxfp4) {
      scale_code =
          static_cast<const std::uint8_t*>(from.scales)[vector / (static_cast<std::uint32_t>(quant::mxfp4_block) / V)];
    } else {
      scale = static_cast<const float*>(from.scales)[stretch.first_row + at / stretch.row_vectors];
    }
  }

  __device__ __forceinline__ void open(float (&x)[V], const Tables<format>& tables, float offset,
                                       std::uint32_t vector) const {
    if constexpr (pairs) {
      // Rounded where bitsandbytes rounds: never fused.
      const float factor = format == QuantFormat::nf4 ? __fadd_rn(__fmul_rn(tables.scales[scale_code], scale), offset)
                                                      : quant::e8m0_value(scale_code);
      constexpr unsigned upper_first = format == QuantFormat::nf4 ? 4 : 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const unsigned place = V == 1 ? vector % 2 : i;
        x[i] = tables.values[word >> ((4 * place) ^ upper_first) & 15u] * factor;
      }
    } else if constexpr (format == QuantFormat::int8) {
      if constexpr (V == 1) {
        x[0] = static_cast<float>(static_cast<std::int8_t>(word)) * scale * quant::int8_step;
      } else {
        // 2^23 + code + 128 as fp32 is 0x4b0000 and a byte.
        const unsigned shifted[] = {word.x ^ 0x80808080u, word.y ^ 0x80808080u};
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const unsigned bits = __byte_perm(shifted[i / 4], 0x4b000000u, 0x7540u + static_cast<unsigned>(i % 4));
          x[i] = (__uint_as_float(bits) - 8388736.0f) * scale * quant::int8_step;
        }
      }
    } else {
      if constexpr (V == 1) {
        x[0] = fp8::e4m3_value(word) * scale;
      } else {
        const unsigned words[] = {word.x, word.y};
#pragma unroll
        for (int i = 0; i < V; i += 2) {
          const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> (i % 4 * 8));
          const float2 numbers = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
          x[i] = numbers.x * scale;
          x[i + 1] = numbers.y * scale;
        }
      }
    }
  }
};

template <QuantFormat format, class T, int V>
__global__ void __launch_bounds__(threads)
    open_matrices(T* out, const __grid_constant__ Sources sources, Stretch stretch) {
  __shared__ Tables<format> tables;
  tables.fill();
  const Source from = sources.matrix[blockIdx.y];
  const float offset = format == QuantFormat::nf4 ? *from.offset : 0.0f;
  out += std::int64_t{blockIdx.y} * stretch.vectors * V;
  const std::uint32_t step = gridDim.x * threads;
  for (std::uint32_t at = blockIdx.x * threads + threadIdx.x; at < stretch.vectors; at += in_flight * step) {
    Coded<format, V> coded[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (at + k * step < stretch.vectors) coded[k].load(from, stretch, at + k * step);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (at + k * step >= stretch.vectors) break;
      float x[V];
      coded[k].open(x, tables, offset, stretch.first_vector + at + k * step);
      store(out + std::int64_t{at + k * step} * V, x);
    }
  }
}

template <class Body>
void with_format(QuantFormat format, const Body& body) {
  switch (format) {
    case QuantFormat::nf4: return body(std::integral_constant<QuantFormat, QuantFormat::nf4>{});
    case QuantFormat::mxfp4: return body(std::integral_constant<QuantFormat, QuantFormat::mxfp4>{});
    case QuantFormat::int8: return body(std::integral_constant<QuantFormat, QuantFormat::int8>{});
    case QuantFormat::fp8: return body(std::integral_constant<QuantFormat, QuantFormat::fp8>{});
  }
}

// ---- quantising -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float largest_of(float value, int width) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}

// A thread takes two numbers and writes their byte; half a block's worth of threads are neighbours in a warp.
template <QuantFormat format, class T>
__global__ void __launch_bounds__(threads)
    quantise_pairs(std::uint8_t* codes, void* scales, const T* values, std::int64_t count) {
  constexpr int block = static_cast<int>(format == QuantFormat::nf4 ? quant::nf4_block : quant::mxfp4_block);
  const std::int64_t pair = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  const float first = 2 * pair < count ? static_cast<float>(values[2 * pair]) : 0.0f;
  const float second = 2 * pair + 1 < count ? static_cast<float>(values[2 * pair + 1]) : 0.0f;
  const float absmax = largest_of(fmaxf(fabsf(first), fabsf(second)), block / 2);
  if (2 * pair >= count) return;
  const bool writes_scale = pair % (block / 2) == 0;
  if constexpr (format == QuantFormat::nf4) {
    const float inverse = quant::nf4_inverse(absmax), x = first * inverse, y = second * inverse;
    unsigned upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < 15; ++i) {
      upper += x > nf4_middles[i];
      lower += y > nf4_middles[i];
    }
    codes[pair] = static_cast<std::uint8_t>(upper << 4 | lower);
    if (writes_scale) static_cast<float*>(scales)[pair / (block / 2)] = absmax;
  } else {
    const std::uint8_t scale = quant::e8m0_of(absmax);
    const float inverse = quant::e8m0_inverse(scale);
    codes[pair] =
        static_cast<std::uint8_t>(quant::e2m1_code(first * inverse) | quant::e2m1_code(second * inverse) << 4);
    if (writes_scale) static_cast<std::uint8_t*>(scales)[pair / (block / 2)] = scale;
  }
}

// The largest value of the block, known to all its threads; `partials` is shared memory for 32.
__device__ __forceinline__ float block_largest(float value, float* partials) {
  value = largest_of(value, 32);
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = partials[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) largest = fmaxf(largest, partials[warp]);
  return largest;
}

// A block a row.
template <QuantFormat format, class T>
__global__ void __launch_bounds__(threads)
    quantise_by_row(std::uint8_t* codes, float* scales, const T* values, std::int64_t cols) {
  __shared__ float partials[32];
  const T* x = values + blockIdx.x * cols;
  codes += blockIdx.x * cols;
  float absmax = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += threads) absmax = fmaxf(absmax, fabsf(static_cast<float>(x[i])));
  absmax = block_largest(absmax, partials);
  if constexpr (format == QuantFormat::int8) {
    const float inverse = quant::int8_inverse(absmax);
    if (threadIdx.x == 0) scales[blockIdx.x] = absmax;
    for (std::int64_t i = threadIdx.x; i < cols; i += threads) {
      codes[i] = static_cast<std::uint8_t>(__float2int_rn(__fmul_rn(static_cast<float>(x[i]), inverse)));
    }
  } else {
    const float scale = __fdiv_rn(absmax, fp8::e4m3_largest);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (std::int64_t i = threadIdx.x; i < cols; i += threads) {
      codes[i] = scale > 0 ? fp8::e4m3_code(__fdiv_rn(static_cast<float>(x[i]), scale)) : std::uint8_t{0};
    }
  }
}

// One block: a thread takes every 1024th number, in order; then a fixed tree.
__global__ void __launch_bounds__(1024) mean_of(float* mean, const float* values, std::int64_t count) {
  __shared__ double sums[1024];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += 1024) sum += static_cast<double>(values[i]);
  sums[threadIdx.x] = sum;
  for (unsigned width = 512; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(sums[0] / static_cast<double>(count));
}

__global__ void __launch_bounds__(quant::nested_block)
    nest_scales(std::uint8_t* codes, float* nested, const float* values, const float* offset, std::int64_t count) {
  __shared__ float partials[32];
  const std::int64_t at = blockIdx.x * quant::nested_block + threadIdx.x;
  const float x = at < count ? values[at] - *offset : 0.0f;
  const float absmax = block_largest(fabsf(x), partials);
  if (threadIdx.x == 0) nested[blockIdx.x] = absmax;
  if (at < count) codes[at] = quant::dynamic_code(x * quant::nested_inverse(absmax), dynamic_middles.data());
}

}  // namespace

void dequantise_rows(Exec& exec, View out, std::span<const Quantised> matrices, std::int64_t row) {
  const Quantised& like = matrices.front();
  const std::int64_t rows = out.dim(out.rank() - 2), size = rows * like.cols, first = row * like.cols;
  constexpr int full = 8;
  bool vectors = like.cols % full == 0 || (like.format == QuantFormat::nf4 && size % full == 0 && first % full == 0);
  for (const Quantised& matrix : matrices) vectors &= reinterpret_cast<std::uintptr_t>(matrix.codes.data()) % 8 == 0;
  vectors &= reinterpret_cast<std::uintptr_t>(out.data()) % 16 == 0;
  INLAY_ASSERT(like.rows * like.cols < std::int64_t{1} << 32, "dequantise_rows: a matrix [{}, {}] is too large",
               like.rows, like.cols);

  const auto launch = [&](auto format, auto type, auto width, std::span<const Quantised> some, View to) {
    using T = decltype(type);
    Sources sources;
    for (std::size_t i = 0; i < some.size(); ++i) {
      sources.matrix[i] = {.codes = static_cast<const std::uint8_t*>(some[i].codes.data()),
                           .scales = some[i].scales.data(),
                           .nested = pointer<float>(some[i].nested_scales),
                           .offset = pointer<float>(some[i].offset)};
    }
    const Stretch stretch{.vectors = static_cast<std::uint32_t>(size / width),
                          .first_vector = static_cast<std::uint32_t>(first / width),
                          .row_vectors = static_cast<std::uint32_t>(like.cols / width),
                          .first_row = static_cast<std::uint32_t>(row)};
    // A few rounds of blocks a multiprocessor: enough for an even end, few enough to fill tables seldom.
    const auto count = static_cast<std::int64_t>(some.size());
    const std::int64_t most = (32 * gpu(exec).multiprocessors() + count - 1) / count;
    const std::int64_t wanted = (stretch.vectors + threads * in_flight - 1) / (threads * in_flight);
    const dim3 blocks(static_cast<unsigned>(std::min(most, wanted)), static_cast<unsigned>(count));
    open_matrices<format, T, width><<<blocks, threads, 0, stream_of(exec)>>>(pointer<T>(to), sources, stretch);
    check_launch("dequantise_rows");
  };
  const View stacked = out.reshape({static_cast<std::int64_t>(matrices.size()), rows, like.cols});
  for (std::size_t begin = 0; begin < matrices.size(); begin += most_matrices) {
    const std::size_t end = std::min(matrices.size(), begin + most_matrices);
    const auto some = matrices.subspan(begin, end - begin);
    const View to = stacked.slice_rows(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
    with_format(like.format, [&](auto format) {
      with_activation_type(out.dtype(), [&](auto type) {
        if (vectors) {
          launch(format, type, std::integral_constant<int, full>{}, some, to);
        } else {
          launch(format, type, std::integral_constant<int, 1>{}, some, to);
        }
      });
    });
  }
}

void quantise_rows(Exec& exec, const Quantised& to, std::int64_t row, ConstView values, View pending) {
  const std::int64_t first = row * to.cols, count = values.size();
  auto* const codes = static_cast<std::uint8_t*>(to.codes.data());
  const auto pair_blocks = static_cast<unsigned>((count + 2 * threads - 1) / (2 * threads));
  with_floating_type(values.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* from = pointer<T>(values);
    const auto pairs = [&](auto format, void* scales) {
      quantise_pairs<format, T><<<pair_blocks, threads, 0, stream_of(exec)>>>(codes + first / 2, scales, from, count);
    };
    const auto by_row = [&](auto format) {
      quantise_by_row<format, T><<<static_cast<unsigned>(values.dim(0)), threads, 0, stream_of(exec)>>>(
          codes + first, pointer<float>(to.scales) + row, from, to.cols);
    };
    with_format(to.format, [&](auto format) {
      if constexpr (format == QuantFormat::nf4) {
        pairs(format, pointer<float>(pending) + first / quant::nf4_block);
      } else if constexpr (format == QuantFormat::mxfp4) {
        pairs(format, pointer<std::uint8_t>(to.scales) + first / quant::mxfp4_block);
      } else {
        by_row(format);
      }
    });
  });
  check_launch("quantise_rows");
}

void finish_quantising(Exec& exec, const Quantised& to, View pending, std::optional<float> offset) {
  const auto* waiting = pointer<float>(pending);
  auto* const mean = pointer<float>(to.offset);
  if (!offset) {
    mean_of<<<1, 1024, 0, stream_of(exec)>>>(mean, waiting, pending.size());
    check_launch("finish_quantising");
  }
  nest_scales<<<static_cast<unsigned>(to.nested_scales.size()), quant::nested_block, 0, stream_of(exec)>>>(
      pointer<std::uint8_t>(to.scales), pointer<float>(to.nested_scales), waiting, mean, pending.size());
  check_launch("finish_quantising");
}

}  // namespace inlay::ops::cuda
