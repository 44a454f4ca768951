#include <algorithm>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/adamw_8bit.h"
#include "ops/quant_codes.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

__device__ const std::array<float, 256> signed_table = quant::dynamic_values;
__device__ const std::array<float, 255> signed_middles = quant::dynamic_midpoints;
__device__ const std::array<float, 256> unsigned_table = quant::unsigned_dynamic_values;
__device__ const std::array<float, 255> unsigned_middles = quant::unsigned_dynamic_midpoints;

constexpr int warps = 8, each = moment_block / 32;

__device__ __forceinline__ float largest_of_warp(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// A warp has a block of moments at a time, a lane every 32nd number of it: neighbours read neighbours.
__global__ void __launch_bounds__(warps * 32)
    update(float* grad, std::uint8_t* m_codes, std::uint8_t* v_codes, float* m_scales, float* v_scales,
           const float* grad_scale, AdamWFactors f, std::int64_t blocks, std::int64_t across, std::int64_t cols) {
  __shared__ float m_values[256], v_values[256], m_middles[255], v_middles[255];
  for (int i = threadIdx.x; i < 256; i += warps * 32) {
    m_values[i] = signed_table[i];
    v_values[i] = unsigned_table[i];
    if (i < 255) m_middles[i] = signed_middles[i], v_middles[i] = unsigned_middles[i];
  }
  __syncthreads();
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
  const int lane = threadIdx.x % 32;
  for (std::int64_t block = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32; block < blocks;
       block += std::int64_t{gridDim.x} * warps) {
    const std::int64_t col = block % across * moment_block, at = block / across * cols + col;
    const auto count = static_cast<int>(cols - col < moment_block ? cols - col : moment_block);
    const float m_scale = m_scales[block], v_scale = v_scales[block];
    float g[each], m[each], v[each];
    std::uint8_t m_code[each], v_code[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int i = k * 32 + lane;
      const bool inside = i < count;
      g[k] = inside ? grad[at + i] : 0.0f;
      m_code[k] = inside ? m_codes[at + i] : 127;
      v_code[k] = inside ? v_codes[at + i] : 0;
    }
    float m_largest = 0, v_largest = 0;
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const float x = g[k] * scale;
      m[k] = m_values[m_code[k]] * m_scale;
      m[k] += (x - m[k]) * f.m_rate;
      v[k] = v_values[v_code[k]] * v_scale * f.beta2 + x * x * f.v_rate;
      g[k] = -(m[k] * f.step_size / (sqrtf(v[k]) / f.v_root + f.eps));
      m_largest = fmaxf(m_largest, fabsf(m[k]));
      v_largest = fmaxf(v_largest, v[k]);
    }
    m_largest = largest_of_warp(m_largest);
    v_largest = largest_of_warp(v_largest);
    const float m_inverse = quant::nested_inverse(m_largest), v_inverse = quant::nested_inverse(v_largest);
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int i = k * 32 + lane;
      if (i >= count) continue;
      grad[at + i] = g[k];  // =
      m_codes[at + i] = quant::dynamic_code(m[k] * m_inverse, m_middles);
      v_codes[at + i] = quant::dynamic_code(v[k] * v_inverse, v_middles);
    }
    if (lane == 0) m_scales[block] = m_largest, v_scales[block] = v_largest;
  }
}

}  // namespace

void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWFactors& factors) {
  const std::int64_t cols = grad.dim(1), across = moment_blocks(cols), blocks = grad.dim(0) * across;
  // So many at once fill any GPU; each then reads its tables once for many blocks.
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>((blocks + warps - 1) / warps, 132 * 8));
  update<<<grid, warps * 32, 0, stream_of(exec)>>>(pointer<float>(grad), pointer<std::uint8_t>(moments.m),
                                                   pointer<std::uint8_t>(moments.v), pointer<float>(moments.m_scale),
                                                   pointer<float>(moments.v_scale), pointer<float>(grad_scale), factors,
                                                   blocks, across, cols);
  check_launch("adamw_update_8bit");
}

}  // namespace inlay::ops::cuda
