#include <algorithm>
#include <bit>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/adamw_8bit.h"
#include "ops/master.cuh"
#include "ops/quant_codes.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

// Codes are found by the leading bits of a number: exponent and seven bits of mantissa say between which few midpoints
// it lies. first_codes[i] is the least code of any number in bucket i; everything below 2^-21 is in the first.
constexpr std::uint32_t bucket_bits = 16, least_magnitude = (127u - 21u) << 23;
constexpr int buckets = 21 * 128 + 1;

constexpr float bucket_edge(int bucket) {
  return std::bit_cast<float>(least_magnitude + (static_cast<std::uint32_t>(bucket) << bucket_bits));
}

using FirstCodes = std::array<std::uint8_t, (buckets + 3) / 4 * 4>;
constexpr FirstCodes first_codes(const std::array<float, 255>& midpoints, bool negative) {
  FirstCodes codes{};
  for (int i = 0; i < buckets; ++i) {
    const float least = negative ? -bucket_edge(i + 1) : i == 0 ? 0.0f : bucket_edge(i);
    codes[static_cast<std::size_t>(i)] = quant::dynamic_code(least, midpoints.data());
  }
  return codes;
}

struct Tables {
  std::array<float, 256> m_values = quant::dynamic_values, v_values = quant::unsigned_dynamic_values;
  std::array<float, 255> m_middles = quant::dynamic_midpoints, v_middles = quant::unsigned_dynamic_midpoints;
  FirstCodes positive = first_codes(quant::dynamic_midpoints, false);
  FirstCodes negative = first_codes(quant::dynamic_midpoints, true);
  FirstCodes squares = first_codes(quant::unsigned_dynamic_midpoints, false);
};
__device__ const Tables tables{};

// quant::dynamic_code(), from the first code of the number's bucket on.
__device__ __forceinline__ std::uint32_t code_of(float x, const std::uint8_t* first_codes, const float* midpoints) {
  const std::uint32_t magnitude = __float_as_uint(fabsf(x));
  const std::uint32_t bucket = magnitude < least_magnitude ? 0u : (magnitude - least_magnitude) >> bucket_bits;
  std::uint32_t code = first_codes[min(bucket, static_cast<std::uint32_t>(buckets - 1))];
  while (code < 255u && midpoints[code] < x) ++code;
  return code;
}

constexpr int warps = 8, each = moment_block / 32;
static_assert(each == moments_together);

__device__ __forceinline__ float largest_of_warp(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// A lane's eight numbers of a block of moments: neighbours as a vector where rows are made of whole ones, every 32nd
// elsewhere.
template <bool vectors>
struct Lane {
  int number, count;  // of the lane, and of the block's numbers
  __device__ int index(int k) const { return vectors ? number * each + k : k * 32 + number; }
  __device__ bool inside(int k) const { return (vectors ? number * each : index(k)) < count; }

  __device__ void load(float (&x)[each], const float* from) const {
    if constexpr (vectors) {
      if (inside(0)) return backend::cuda::load(x, from + number * each);
    }
#pragma unroll
    for (int k = 0; k < each; ++k) x[k] = inside(k) ? from[index(k)] : 0.0f;
  }
  __device__ void store(float* to, const float (&x)[each]) const {
    if constexpr (vectors) {
      if (inside(0)) backend::cuda::store(to + number * each, x);
    } else {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        if (inside(k)) to[index(k)] = x[k];
      }
    }
  }
  __device__ void load(std::uint32_t (&codes)[each], const std::uint8_t* from, std::uint32_t outside) const {
    uint2 words = {};
    if (vectors && inside(0)) words = *reinterpret_cast<const uint2*>(from + number * each);
#pragma unroll
    for (int k = 0; k < each; ++k) {
      if constexpr (vectors) {
        codes[k] = inside(k) ? (k < 4 ? words.x : words.y) >> k % 4 * 8 & 0xffu : outside;
      } else {
        codes[k] = inside(k) ? from[index(k)] : outside;
      }
    }
  }
  __device__ void store(std::uint8_t* to, const std::uint32_t (&codes)[each]) const {
    if constexpr (vectors) {
      uint2 words = {};
#pragma unroll
      for (int k = 0; k < each; ++k) (k < 4 ? words.x : words.y) |= codes[k] << k % 4 * 8;
      if (inside(0)) *reinterpret_cast<uint2*>(to + number * each) = words;
    } else {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        if (inside(k)) to[index(k)] = static_cast<std::uint8_t>(codes[k]);
      }
    }
  }
};

struct Pointers {
  float* grad;
  std::uint8_t *m_codes, *v_codes;
  float *m_scales, *v_scales;
  const float* grad_scale;
};

// A warp has a block of moments at a time. Value: of the weight, which takes the change at once; void: the gradient
// becomes the change.
template <class Value, bool vectors>
__global__ void __launch_bounds__(warps * 32) update(Pointers to, Value* value, std::int16_t* low, AdamWFactors f,
                                                     std::int64_t blocks, std::int64_t across, std::int64_t cols) {
  __shared__ Tables t;
  for (unsigned i = threadIdx.x; i < sizeof(Tables) / 4; i += warps * 32) {
    reinterpret_cast<std::uint32_t*>(&t)[i] = reinterpret_cast<const std::uint32_t*>(&tables)[i];
  }
  __syncthreads();
  const float scale = to.grad_scale != nullptr ? *to.grad_scale : 1.0f;
  for (std::int64_t block = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32; block < blocks;
       block += std::int64_t{gridDim.x} * warps) {
    const std::int64_t col = block % across * moment_block, at = block / across * cols + col;
    const Lane<vectors> lane{static_cast<int>(threadIdx.x % 32),
                             static_cast<int>(cols - col < moment_block ? cols - col : moment_block)};
    const float m_scale = to.m_scales[block], v_scale = to.v_scales[block];
    float g[each], m[each], v[each];
    std::uint32_t m_code[each], v_code[each];
    lane.load(g, to.grad + at);
    lane.load(m_code, to.m_codes + at, 127);
    lane.load(v_code, to.v_codes + at, 0);
    float m_largest = 0, v_largest = 0;
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const float x = g[k] * scale;
      m[k] = t.m_values[m_code[k]] * m_scale;
      m[k] += (x - m[k]) * f.m_rate;
      v[k] = t.v_values[v_code[k]] * v_scale * f.beta2 + x * x * f.v_rate;
      g[k] = -(m[k] * f.step_size / (sqrtf(v[k]) / f.v_root + f.eps));
      m_largest = fmaxf(m_largest, fabsf(m[k]));
      v_largest = fmaxf(v_largest, v[k]);
    }
    if constexpr (std::is_void_v<Value>) {
      lane.store(to.grad + at, g);
    } else if constexpr (vectors) {
      if (lane.inside(0)) {
        const std::int64_t first = at + lane.index(0);
        float p[each];
        load_master(p, value + first, low + first);
#pragma unroll
        for (int k = 0; k < each; ++k) p[k] = p[k] * f.decay + g[k];
        store_master(value + first, low + first, p);
      }
    }
    m_largest = largest_of_warp(m_largest);
    v_largest = largest_of_warp(v_largest);
    const float m_inverse = quant::nested_inverse(m_largest), v_inverse = quant::nested_inverse(v_largest);
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const float x = m[k] * m_inverse;
      m_code[k] = code_of(x, x < 0 ? t.negative.data() : t.positive.data(), t.m_middles.data());
      v_code[k] = code_of(v[k] * v_inverse, t.squares.data(), t.v_middles.data());
    }
    lane.store(to.m_codes + at, m_code);
    lane.store(to.v_codes + at, v_code);
    if (lane.number == 0) to.m_scales[block] = m_largest, to.v_scales[block] = v_largest;
  }
}

template <class Value, bool vectors>
void launch(Exec& exec, View value, View low, View grad, const Moments8& moments, ConstView grad_scale,
            const AdamWFactors& factors) {
  const std::int64_t cols = grad.dim(1), across = moment_blocks(cols), blocks = grad.dim(0) * across;
  // So many at once fill any GPU; each then reads its tables once for many blocks.
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>((blocks + warps - 1) / warps, 132 * 8));
  const Pointers to = {pointer<float>(grad),
                       pointer<std::uint8_t>(moments.m),
                       pointer<std::uint8_t>(moments.v),
                       pointer<float>(moments.m_scale),
                       pointer<float>(moments.v_scale),
                       pointer<float>(grad_scale)};
  update<Value, vectors><<<grid, warps * 32, 0, stream_of(exec)>>>(
      to, static_cast<Value*>(value.data()), static_cast<std::int16_t*>(low.data()), factors, blocks, across, cols);
  check_launch("adamw_update_8bit");
}

}  // namespace

void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWFactors& factors) {
  const auto run = grad.dim(1) % moments_together == 0 ? launch<void, true> : launch<void, false>;
  run(exec, {}, {}, grad, moments, grad_scale, factors);
}

void adamw_step_8bit(Exec& exec, View value, View low, View grad, const Moments8& moments, ConstView grad_scale,
                     const AdamWFactors& factors) {
  const auto run = value.dtype() == DType::bf16 ? launch<__nv_bfloat16, true> : launch<float, true>;
  run(exec, value, low, grad, moments, grad_scale, factors);
}

}  // namespace inlay::ops::cuda
