#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm_driver.h"
#include "backend/cpu/transpose.h"

namespace inlay::backend::cpu {

namespace {

constexpr std::int64_t block_rows = lanes == 16 ? 12 : 6, block_vectors = 2;  // 24 of 32 registers, or 12 of 16

// body(std::integral_constant 0), ..., of count - 1.
template <std::int64_t count, class Body>
void each_index(const Body& body) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (body(std::integral_constant<std::int64_t, static_cast<std::int64_t>(i)>{}), ...);
  }
  (std::make_index_sequence<count>{});
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return static_cast<float>(x); }
inline float to_float(f16 x) { return static_cast<float>(x); }

// Where a panel's numbers for one k come from a vector: all of them, or those that are left of the panel. A vector may
// be written whole where what it spills into is written later.
template <std::int64_t count>
void put_first(float* to, f32v value, bool spill) {
  if (count >= lanes || spill) {
    cpu::store(to, value);
  } else {
    std::memcpy(to, &value, count * sizeof(float));
  }
}

// A panel of `width` rows of a matrix whose rows run along k: to[j · width + i] = from[i · ld + j] for i < rows (zeros
// up to width), j < depth.
template <class In, std::int64_t width>
void pack_across(float* to, const In* from, std::int64_t ld, std::int64_t rows, std::int64_t depth) {
  std::int64_t j0 = 0;
  for (; j0 + lanes <= depth; j0 += lanes) {
    each_index<(width + lanes - 1) / lanes>([&](auto group) {
      constexpr std::int64_t first = group * lanes, count = std::min(lanes, width - first);
      u32v v[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) {
        v[i] = i < count && first + i < rows ? (u32v)load(from + (first + i) * ld + j0) : u32v{};
      }
      transpose(v);
      for (std::int64_t j = 0; j < lanes; ++j) {
        put_first<count>(to + (j0 + j) * width + first, (f32v)v[j], width < lanes && j0 + j + 1 < depth);
      }
    });
  }
  for (; j0 < depth; ++j0) {
    for (std::int64_t i = 0; i < width; ++i) to[j0 * width + i] = i < rows ? to_float(from[i * ld + j0]) : 0.0f;
  }
}

// Panels of a matrix whose rows run along the panels, `extent` numbers of each: number i of panel p for k = j goes to
// to[p · width · depth + j · width + i]. Zeros behind the end.
template <class In, std::int64_t width>
void pack_along(float* to, const In* from, std::int64_t ld, std::int64_t extent, std::int64_t depth) {
  for (std::int64_t j = 0; j < depth; ++j, from += ld) {
    const bool last = j + 1 == depth;
    float* panel = to + j * width;
    std::int64_t at = 0;
    // A vector may be read past the panel's numbers where a row comes after them.
    for (; at + width <= extent && (!last || at + round_up(width, lanes) <= extent); at += width) {
      each_index<(width + lanes - 1) / lanes>([&](auto group) {
        constexpr std::int64_t first = group * lanes, count = std::min(lanes, width - first);
        put_first<count>(panel + first, load(from + at + first), width < lanes && !last);
      });
      panel += width * depth;
    }
    for (; at < extent; at += width, panel += width * depth) {
      for (std::int64_t i = 0; i < width; ++i) panel[i] = at + i < extent ? to_float(from[at + i]) : 0.0f;
    }
  }
}

// to = value + beta · to, the first `count` of them.
template <class T>
void put(T* to, f32v value, float beta, std::int64_t count) {
  if constexpr (!std::is_same_v<T, f16>) {
    if (count == lanes) {
      cpu::store(to, beta == 0.0f ? value : value + splat(beta) * load(to));
      return;
    }
  }
  if (beta != 0.0f) {
    f32v old{};
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
  static constexpr std::int64_t budget = std::int64_t{16} << 20;
  static std::int64_t steps(std::int64_t) { return 1; }
  struct Session {};

  // Panels of rows begin .. end of op(A), each of mr, one behind the other.
  static void pack_a(float* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                     std::int64_t k1) {
    pack<mr>(to, static_cast<const In*>(g.a), g.lda, !g.transpose_a, begin, end, k0, k1);
  }
  static void pack_b(float* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                     std::int64_t k1) {
    pack<nr>(to, static_cast<const In*>(g.b), g.ldb, g.transpose_b, begin, end, k0, k1);
  }
  template <std::int64_t width>
  static void pack(float* to, const In* from, std::int64_t ld, bool along_k, std::int64_t begin, std::int64_t end,
                   std::int64_t k0, std::int64_t k1) {
    const std::int64_t depth = k1 - k0;
    if (!along_k) return pack_along<In, width>(to, from + k0 * ld + begin, ld, end - begin, depth);
    for (std::int64_t at = begin; at < end; at += width, to += width * depth) {
      pack_across<In, width>(to, from + at * ld + k0, ld, std::min(width, end - at), depth);
    }
  }

  // Unrolled to the last loop, and a function by itself: only then do the sums live in registers. Inlined into the
  // loops around it, some of them do not, and half of the speed is gone.
  [[gnu::noinline]] static void multiply(float* block, const float* a, const float* b, const BlockExtent& extent,
                                         Ahead& ahead) {
    ahead.step();
    f32v sums[mr][block_vectors];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < mr; ++i) {
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = f32v{};
    }
    for (std::int64_t k = 0; k < extent.depth; ++k, a += mr, b += nr) {
      f32v row[block_vectors];
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < block_vectors; ++j) row[j] = load(b + j * lanes);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < mr; ++i) {
        const f32v factor = splat(a[i]);
#pragma GCC unroll 2
        for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = factor * row[j] + sums[i][j];
      }
    }
    // Of long sums, those of kc terms are added up, which keeps more of them than going on from what was put down.
    if (extent.add) {
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < mr; ++i) {
#pragma GCC unroll 2
        for (std::int64_t j = 0; j < block_vectors; ++j) sums[i][j] = load(block + i * nr + j * lanes) + sums[i][j];
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

std::size_t vector_workspace(const GemmArgs& args, DType in) {
  switch (in) {
    case DType::f32: return workspace_bytes<VectorKernel<float, float>>(args);
    case DType::bf16: return workspace_bytes<VectorKernel<bf16, float>>(args);
    default: return workspace_bytes<VectorKernel<f16, float>>(args);
  }
}

void multiply(const GemmArgs& args, DType in, DType out) {
  switch (in) {
    case DType::f32: return run<float>(args, out);
    case DType::bf16: return run<bf16>(args, out);
    default: return run<f16>(args, out);
  }
}

}  // namespace

extern "C" const GemmKernel INLAY_TABLE = {multiply, vector_workspace};

}  // namespace inlay::backend::cpu
