#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm_driver.h"
#include "backend/cpu/vec.h"

namespace inlay::backend::cpu {

namespace {

#ifdef __AVX512F__
constexpr std::int64_t block_rows = 12, block_vectors = 2;  // 24 of 32 registers hold sums
#else
constexpr std::int64_t block_rows = 4, block_vectors = 1;  // 8 of 16 registers where a vector takes two
#endif

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return static_cast<float>(x); }
inline float to_float(f16 x) { return static_cast<float>(x); }

// dst[j · width + i] = src[i · ld + j] for rows i < rows (zeros up to width), j < depth: i runs along the block.
template <class In, std::int64_t width>
void pack_across(float* to, const In* from, std::int64_t ld, std::int64_t rows, std::int64_t depth) {
  if (rows < width) std::memset(to, 0, static_cast<std::size_t>(width * depth) * sizeof(float));
  constexpr std::int64_t run = 16;
  for (std::int64_t j0 = 0; j0 < depth; j0 += run) {
    const std::int64_t count = std::min(run, depth - j0);
    for (std::int64_t i = 0; i < rows; ++i) {
      const In* const row = from + i * ld + j0;
      for (std::int64_t j = 0; j < count; ++j) to[(j0 + j) * width + i] = to_float(row[j]);
    }
  }
}

// dst[j · width + i] = src[j · ld + i] for i < cols (zeros up to width).
template <class In, std::int64_t width>
void pack_along(float* to, const In* from, std::int64_t ld, std::int64_t cols, std::int64_t depth) {
  for (std::int64_t j = 0; j < depth; ++j, to += width, from += ld) {
    if (cols >= width) {
      for (std::int64_t i = 0; i < width; ++i) to[i] = to_float(from[i]);
    } else {
      for (std::int64_t i = 0; i < width; ++i) to[i] = i < cols ? to_float(from[i]) : 0.0f;
    }
  }
}

// to = value + beta · to, the first `count` of them.
template <class T>
void put(T* to, f32x16 value, float beta, std::int64_t count) {
  if constexpr (!std::is_same_v<T, f16>) {
    if (count == lanes) {
      cpu::store(to, beta == 0.0f ? value : value + splat(beta) * load(to));
      return;
    }
  }
  if (beta != 0.0f) {
    f32x16 old{};
    for (int i = 0; i < count; ++i) old[i] = to_float(to[i]);
    value = value + splat(beta) * old;
  }
  for (int i = 0; i < count; ++i) to[i] = static_cast<T>(value[i]);
}

// Panels of A: mr numbers for every k; panels of B: nr of them. All fp32, whatever the operands are.
template <class InType, class OutType>
struct VectorKernel {
  using In = InType;
  using Out = OutType;
  using Packed = float;
  static constexpr std::int64_t mr = block_rows, nr = block_vectors * lanes, k_unit = 1, kc = 320;
  // Of fp32, only what is too small for oneDNN comes here.
  static constexpr std::int64_t budget = std::int64_t{std::is_same_v<In, float> ? 2 : 16} << 20;
  struct Session {};

  static void pack_a(float* to, const GemmArgs& g, std::int64_t m, std::int64_t k0, std::int64_t k1) {
    const auto* const a = static_cast<const In*>(g.a);
    const std::int64_t rows = std::min(mr, g.m - m);
    if (g.transpose_a) {
      pack_along<In, mr>(to, a + k0 * g.lda + m, g.lda, rows, k1 - k0);
    } else {
      pack_across<In, mr>(to, a + m * g.lda + k0, g.lda, rows, k1 - k0);
    }
  }

  static void pack_b(float* to, const GemmArgs& g, std::int64_t n, std::int64_t k0, std::int64_t k1) {
    const auto* const b = static_cast<const In*>(g.b);
    const std::int64_t cols = std::min(nr, g.n - n);
    if (g.transpose_b) {
      pack_across<In, nr>(to, b + n * g.ldb + k0, g.ldb, cols, k1 - k0);
    } else {
      pack_along<In, nr>(to, b + k0 * g.ldb + n, g.ldb, cols, k1 - k0);
    }
  }

  // Unrolled to the last loop: only then do the sums live in registers.
  static void multiply(float* block, const float* a, const float* b, const BlockExtent& extent, Ahead&) {
    f32x16 sums[mr][block_vectors];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < mr; ++i) {
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = f32x16{};
    }
    if (extent.add) {
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < mr; ++i) {
#pragma GCC unroll 2
        for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = load(block + i * nr + j * lanes);
      }
    }
    for (std::int64_t k = 0; k < extent.depth; ++k, a += mr, b += nr) {
      f32x16 row[block_vectors];
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < block_vectors; ++j) row[j] = load(b + j * lanes);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < mr; ++i) {
        const f32x16 factor = splat(a[i]);
#pragma GCC unroll 2
        for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = factor * row[j] + sums[i][j];
      }
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < mr; ++i) {
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < block_vectors; ++j) cpu::store(block + i * nr + j * lanes, sums[i][j]);
    }
  }

  static void store(const GemmArgs& g, const float* block, std::int64_t m, std::int64_t n, bool) {
    const std::int64_t rows = std::min(mr, g.m - m), cols = std::min(nr, g.n - n);
    Out* const c = static_cast<Out*>(g.c) + m * g.ldc + n;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; j += lanes) {
        put(c + i * g.ldc + j, splat(g.alpha) * load(block + i * nr + j), g.beta, std::min(lanes, cols - j));
      }
    }
  }
};

template <class In>
void run(const GemmArgs& args, DType out) {
  if (out == DType::f32) {
    run_gemm<VectorKernel<In, float>>(args);
  } else {
    run_gemm<VectorKernel<In, In>>(args);
  }
}

}  // namespace

std::size_t vector_workspace_bytes(const GemmArgs& args, DType in) {
  switch (in) {
    case DType::f32: return workspace_bytes<VectorKernel<float, float>>(args);
    case DType::bf16: return workspace_bytes<VectorKernel<bf16, float>>(args);
    default: return workspace_bytes<VectorKernel<f16, float>>(args);
  }
}

void vector_gemm(const GemmArgs& args, DType in, DType out) {
  switch (in) {
    case DType::f32: return run<float>(args, out);
    case DType::bf16: return run<bf16>(args, out);
    default: return run<f16>(args, out);
  }
}

}  // namespace inlay::backend::cpu
