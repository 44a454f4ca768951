#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

// Sixteen bytes of logits: four floats, or eight halves of either kind, as bits until they are needed as floats.
namespace inlay::ops::cuda {

template <class T>
inline constexpr int logits_a_vector = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

template <class T>
__device__ __forceinline__ void unpack(float (&values)[logits_a_vector<T>], uint4 bits) {
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      __half2 pair;
      memcpy(&pair, &words[i], sizeof pair);
      const float2 wide = __half22float2(pair);
      values[2 * i] = wide.x;
      values[2 * i + 1] = wide.y;
    }
  }
}

template <class T>
__device__ __forceinline__ uint4 pack(const float (&values)[logits_a_vector<T>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(values[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      memcpy(&words[i], &pair, sizeof pair);
    } else {
      const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      memcpy(&words[i], &pair, sizeof pair);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Minus infinity in every column: what lies past the end of a row adds nothing to a maximum or a sum.
template <class T>
__device__ __forceinline__ uint4 lowest_vector() {
  constexpr std::uint32_t word = sizeof(T) == 4                     ? 0xff800000u
                                 : std::is_same_v<T, __nv_bfloat16> ? 0xff80ff80u
                                                                    : 0xfc00fc00u;
  return make_uint4(word, word, word, word);
}

// Keeps the first `valid` columns and makes the others minus infinity.
template <class T>
__device__ __forceinline__ void mask_tail(uint4& bits, int valid) {
  float values[logits_a_vector<T>];
  unpack<T>(values, bits);
#pragma unroll
  for (int i = 0; i < logits_a_vector<T>; ++i) values[i] = i < valid ? values[i] : -INFINITY;
  bits = pack<T>(values);
}

}  // namespace inlay::ops::cuda
