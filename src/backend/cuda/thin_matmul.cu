#include "backend/cuda/thin_matmul.h"

#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"

// A warp takes two rows of B and the whole depth: its lanes read the rows side by side, many vectors under way at a
// time, and A, which is small, comes from the caches. Every number of C is summed up by one warp in an order that
// depends on the depth alone: not on how many rows A has, so a text is the same whichever others it is made with.
namespace inlay::backend::cuda {

namespace {

constexpr int most_rows = 4;  // of A: beyond, tensor cores are faster
constexpr int warps = 4, rows_a_warp = 2;

// Passes by and is not read again.
template <class T, int V>
__device__ __forceinline__ void load_streaming(Pack<T, V>& pack, const T* from) {
  if constexpr (Pack<T, V>::words == 4) {
    const uint4 x = __ldcs(reinterpret_cast<const uint4*>(from));
    pack.word[0] = x.x, pack.word[1] = x.y, pack.word[2] = x.z, pack.word[3] = x.w;
  } else {
    pack.load(from);
  }
}

template <class T, class Out>
struct Task {
  Out* c;
  const T *a, *b;
  std::int64_t ldc, lda, ldb;
  int n, k;
  float alpha, beta;
};

template <class T, class Out, int M>
__global__ void __launch_bounds__(32 * warps) multiply(Task<T, Out> task) {
  constexpr int V = full_vector<T>;
  constexpr int under_way = M <= 2 ? 4 : 2;  // vectors of a row
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = (static_cast<int>(blockIdx.x) * warps + warp) * rows_a_warp;
  if (first >= task.n) return;
  const T* rows[rows_a_warp];
#pragma unroll
  for (int r = 0; r < rows_a_warp; ++r) {
    rows[r] = task.b + std::int64_t{min(first + r, task.n - 1)} * task.ldb;  // a row beyond the last is not written
  }
  float sums[M][rows_a_warp] = {};
  for (int begin = lane * V; begin < task.k; begin += 32 * V * under_way) {
    Pack<T, V> weights[rows_a_warp][under_way], inputs[M][under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      const int at = begin + u * 32 * V;
#pragma unroll
      for (int r = 0; r < rows_a_warp; ++r) {
        if (at < task.k) {
          load_streaming(weights[r][u], rows[r] + at);
        } else {
          weights[r][u].clear();
        }
      }
    }
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      const int at = begin + u * 32 * V;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        if (at < task.k) {
          inputs[m][u].load(task.a + m * task.lda + at);
        } else {
          inputs[m][u].clear();
        }
      }
    }
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      float w[rows_a_warp][V];
#pragma unroll
      for (int r = 0; r < rows_a_warp; ++r) weights[r][u].get(w[r]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        float x[V];
        inputs[m][u].get(x);
#pragma unroll
        for (int i = 0; i < V; ++i) {
#pragma unroll
          for (int r = 0; r < rows_a_warp; ++r) sums[m][r] = fmaf(w[r][i], x[i], sums[m][r]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < rows_a_warp; ++r) {
      const float sum = warp_sum(sums[m][r]);
      if (lane != 0 || first + r >= task.n) continue;
      Out* to = task.c + m * task.ldc + first + r;
      float result[1] = {task.alpha * sum};
      if (task.beta != 0.0f) {
        float old[1];
        load(old, to);
        result[0] += task.beta * old[0];
      }
      store(to, result);
    }
  }
}

template <class T, class Out>
void launch(Exec& exec, View c, ConstView a, ConstView b, const MatmulScale& scale) {
  const Task<T, Out> task{pointer<Out>(c),
                          pointer<T>(a),
                          pointer<T>(b),
                          c.ld(),
                          a.ld(),
                          b.ld(),
                          static_cast<int>(b.dim(0)),
                          static_cast<int>(b.dim(1)),
                          scale.alpha,
                          scale.beta};
  constexpr int rows_a_block = warps * rows_a_warp;
  const auto blocks = static_cast<unsigned>((b.dim(0) + rows_a_block - 1) / rows_a_block);
  const auto kernel = [&] {
    switch (a.dim(0)) {
      case 1: return multiply<T, Out, 1>;
      case 2: return multiply<T, Out, 2>;
      case 3: return multiply<T, Out, 3>;
      default: return multiply<T, Out, 4>;
    }
  }();
  kernel<<<blocks, 32 * warps, 0, stream_of(exec)>>>(task);
  check_launch("matmul");
}

}  // namespace

bool thin_matmul(Exec& exec, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
                 const MatmulScale& scale) {
  if (transpose_a == Transpose::yes || transpose_b == Transpose::no || a.dim(0) > most_rows) return false;
  if (scale.device_alpha != nullptr || a.dtype() == DType::f16) return false;
  constexpr std::int64_t limit = std::int64_t{1} << 30;
  if (b.dim(0) >= limit || b.dim(1) >= limit || b.dim(1) == 0) return false;
  const int width = 16 / static_cast<int>(size_of(a.dtype()));
  if (!vectors_fit(width, a, b)) return false;
  with_activation_type(a.dtype(), [&](auto type) {
    using T = decltype(type);
    if (c.dtype() == DType::f32) {
      launch<T, float>(exec, c, a, b, scale);
    } else {
      launch<T, T>(exec, c, a, b, scale);
    }
  });
  return true;
}

}  // namespace inlay::backend::cuda
