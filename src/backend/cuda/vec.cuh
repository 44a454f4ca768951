#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/view.h"

// Vector loads and stores that convert between the storage dtype and float, and the choice between vector and scalar
// kernels. Kernels are templates over a storage type and V, the elements a thread moves at a time: 16 bytes' worth, or
// one where alignment does not allow that.
namespace inlay::backend::cuda {

template <class T>
inline constexpr int full_vector = 16 / static_cast<int>(sizeof(T));

// A 16-byte store, written out because the compiler takes plain ones apart when it can place their words earlier.
__device__ __forceinline__ void store_global(uint4* to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// V elements as they lie in memory: half the registers of their floats. Moves in 16-byte pieces where it has so many.
template <class T, int V>
struct Pack {
  static constexpr int bytes = V * static_cast<int>(sizeof(T));
  static_assert(bytes == 2 || bytes % 4 == 0);
  using Word = std::conditional_t<bytes == 2, std::uint16_t, std::uint32_t>;
  static constexpr int words = bytes == 2 ? 1 : bytes / 4;
  Word word[words];

  __device__ __forceinline__ void load(const void* from) {
    if constexpr (words % 4 == 0) {
#pragma unroll
      for (int i = 0; i < words / 4; ++i) {
        const uint4 x = static_cast<const uint4*>(from)[i];
        word[4 * i] = x.x, word[4 * i + 1] = x.y, word[4 * i + 2] = x.z, word[4 * i + 3] = x.w;
      }
    } else if constexpr (words == 2) {
      const uint2 x = *static_cast<const uint2*>(from);
      word[0] = x.x, word[1] = x.y;
    } else {
#pragma unroll
      for (int i = 0; i < words; ++i) word[i] = static_cast<const Word*>(from)[i];
    }
  }

  // To global memory only.
  __device__ __forceinline__ void store(void* to) const {
    if constexpr (words % 4 == 0) {
#pragma unroll
      for (int i = 0; i < words / 4; ++i) {
        store_global(static_cast<uint4*>(to) + i, word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
      }
    } else if constexpr (words == 2) {
      *static_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int i = 0; i < words; ++i) static_cast<Word*>(to)[i] = word[i];
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = 0;
  }

  __device__ __forceinline__ void get(float (&x)[V]) const {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = __uint_as_float(word[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if constexpr (V == 1) {
        x[0] = __uint_as_float(static_cast<std::uint32_t>(word[0]) << 16);
      } else {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
          x[2 * i] = __uint_as_float(word[i] << 16);
          x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
        }
      }
    } else {
      static_assert(std::is_same_v<T, __half>);
      if constexpr (V == 1) {
        x[0] = __half2float(__ushort_as_half(word[0]));
      } else {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
          x[2 * i] = __half2float(__ushort_as_half(static_cast<std::uint16_t>(word[i])));
          x[2 * i + 1] = __half2float(__ushort_as_half(static_cast<std::uint16_t>(word[i] >> 16)));
        }
      }
    }
  }

  // Rounds to nearest, ties to even.
  __device__ __forceinline__ void set(const float (&x)[V]) {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < V; ++i) word[i] = __float_as_uint(x[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if constexpr (V == 1) {
        word[0] = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
      } else {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) word[i] = bits(__floats2bfloat162_rn(x[2 * i], x[2 * i + 1]));
      }
    } else {
      if constexpr (V == 1) {
        word[0] = __half_as_ushort(__float2half_rn(x[0]));
      } else {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) word[i] = bits(__floats2half2_rn(x[2 * i], x[2 * i + 1]));
      }
    }
  }

 private:
  template <class Pair>
  static __device__ __forceinline__ std::uint32_t bits(const Pair& pair) {
    static_assert(sizeof(Pair) == 4);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

template <class T, int V>
__device__ __forceinline__ void load(float (&to)[V], const T* from) {
  Pack<T, V> pack;
  pack.load(from);
  pack.get(to);
}

template <class T, int V>
__device__ __forceinline__ void store(T* to, const float (&from)[V]) {
  Pack<T, V> pack;
  pack.set(from);
  pack.store(to);
}

// The floats as they will read once stored.
template <class T, int V>
__device__ __forceinline__ void round_to(float (&x)[V]) {
  Pack<T, V> pack;
  pack.set(x);
  pack.get(x);
}

// Whether every row of every view can be moved in vectors of `width` elements.
template <class... Views>
bool vectors_fit(int width, const Views&... views) {
  const auto fits = [width](const auto& view) {
    if (view.cols() % width != 0 || reinterpret_cast<std::uintptr_t>(view.data()) % 16 != 0) return false;
    for (int axis = 0; axis + 1 < view.rank(); ++axis) {
      if (view.dim(axis) > 1 && view.stride(axis) % width != 0) return false;
    }
    return true;
  };
  return (fits(views) && ...);
}

// Calls body with a value of the storage type that kernels use for a dtype.
template <class Body>
void with_activation_type(DType dtype, const Body& body) {
  INLAY_ASSERT(dtype == DType::f32 || dtype == DType::bf16, "no kernel for {}", name_of(dtype));
  if (dtype == DType::bf16) {
    body(__nv_bfloat16{});
  } else {
    body(float{});
  }
}

template <class Body>
void with_floating_type(DType dtype, const Body& body) {
  if (dtype == DType::f16) {
    body(__half{});
  } else {
    with_activation_type(dtype, body);
  }
}

// Calls body with V as an integral_constant: the full vector where it fits, else 1.
template <class T, class Body>
void with_width(bool vectors, const Body& body) {
  if (vectors) {
    body(std::integral_constant<int, full_vector<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

template <class T, class AnyView>
auto* pointer(const AnyView& view) {
  using Element = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data())>>, const T, T>;
  return static_cast<Element*>(view.data());
}

}  // namespace inlay::backend::cuda
