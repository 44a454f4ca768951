#pragma once

#include "backend/cuda/vec.cuh"

namespace inlay::ops::cuda {

using backend::cuda::Pack;

// An fp32 master as a bf16 value and 16 more bits; see AdamWState for the rule. The same as in adamw_cpu.cpp.
__device__ __forceinline__ float join(std::uint32_t value, std::uint32_t low) {
  const auto extended = static_cast<std::int32_t>(static_cast<std::int16_t>(low));
  return __uint_as_float((value << 16) + static_cast<std::uint32_t>(extended));
}

__device__ __forceinline__ void split(float master, std::uint32_t& value, std::uint32_t& low) {
  std::uint32_t word = __float_as_uint(master);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  const bool is_nan = magnitude > 0x7f800000u;
  if (magnitude > 0x7f7f7fffu && magnitude < 0x7f800000u) word = (word & 0x80000000u) | 0x7f7f7fffu;
  const std::uint32_t rounded = (word + 0x8000u) >> 16;
  value = is_nan ? (word >> 16) | 0x40u : rounded;
  low = is_nan ? 0u : (word - (rounded << 16)) & 0xffffu;
}

// V 16-bit numbers, two a word.
template <int V>
using Shorts = Pack<__nv_bfloat16, V>;

template <int V>
__device__ __forceinline__ void join(float (&master)[V], const Shorts<V>& value, const Shorts<V>& low) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int shift = V == 1 ? 0 : 16 * (i % 2);
    const int word = V == 1 ? 0 : i / 2;
    master[i] = join((value.word[word] >> shift) & 0xffffu, (low.word[word] >> shift) & 0xffffu);
  }
}

template <int V>
__device__ __forceinline__ void split(const float (&master)[V], Shorts<V>& value, Shorts<V>& low) {
  std::uint32_t values[V], lows[V];
#pragma unroll
  for (int i = 0; i < V; ++i) split(master[i], values[i], lows[i]);
#pragma unroll
  for (int i = 0; i < Shorts<V>::words; ++i) {
    using Word = typename Shorts<V>::Word;
    if constexpr (V == 1) {
      value.word[i] = static_cast<Word>(values[i]);
      low.word[i] = static_cast<Word>(lows[i]);
    } else {
      value.word[i] = values[2 * i] | (values[2 * i + 1] << 16);
      low.word[i] = lows[2 * i] | (lows[2 * i + 1] << 16);
    }
  }
}

// The fp32 masters at an address, whatever the weight's dtype: an fp32 weight is its own.
template <int V>
__device__ __forceinline__ void load_master(float (&master)[V], const float* value, const std::int16_t*) {
  backend::cuda::load(master, value);
}
template <int V>
__device__ __forceinline__ void load_master(float (&master)[V], const __nv_bfloat16* value, const std::int16_t* low) {
  Shorts<V> value_pack, low_pack;
  value_pack.load(value);
  low_pack.load(low);
  join(master, value_pack, low_pack);
}
template <int V>
__device__ __forceinline__ void store_master(float* value, std::int16_t*, const float (&master)[V]) {
  backend::cuda::store(value, master);
}
template <int V>
__device__ __forceinline__ void store_master(__nv_bfloat16* value, std::int16_t* low, const float (&master)[V]) {
  Shorts<V> value_pack, low_pack;
  split(master, value_pack, low_pack);
  value_pack.store(value);
  low_pack.store(low);
}

}  // namespace inlay::ops::cuda
