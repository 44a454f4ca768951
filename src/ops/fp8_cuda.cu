#include "backend/cuda/context_internal.h"
#include "ops/fp8_tile.cuh"
#include "ops/moe_permute.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

// The numbers of a tensor, or of rows that are gathered from one: row i is that of token pairs[i] / k.
template <class T, bool gathered>
struct Source {
  const T* data;
  std::int64_t ld;
  bool vectors;
  const std::int32_t* pairs = nullptr;
  int k = 1;

  __device__ __forceinline__ const T* row(std::int64_t i) const {
    if constexpr (gathered) return data + pairs[i] / k * ld;
    return data + i * ld;
  }

  // Zeros where there is nothing.
  __device__ __forceinline__ void load(TilePart<T> (&part)[fp8_edge], const TilePlace& at) const {
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      part[r].clear();
      if (at.row() + r >= at.rows) continue;
      const T* from = row(at.row() + r) + at.col();
      if (vectors) {
        if (at.col() < at.cols) part[r].load(from);
        continue;
      }
      float x[fp8_edge];
#pragma unroll
      for (int j = 0; j < fp8_edge; ++j) x[j] = at.col() + j < at.cols ? static_cast<float>(from[j]) : 0.0f;
      part[r].set(x);
    }
  }
};

struct Extents {
  std::int64_t rows, cols;
  unsigned col_blocks;

  __device__ __forceinline__ TilePlace place() const {
    return {.row_block = blockIdx.x / col_blocks, .col_block = blockIdx.x % col_blocks, .rows = rows, .cols = cols};
  }
};

template <class T, bool gathered>
__global__ void __launch_bounds__(fp8_threads, 2)
    quantise(FormOut rows, FormOut columns, Source<T, gathered> source, Extents extents) {
  __shared__ TileMemory memory;
  const TilePlace at = extents.place();
  TilePart<T> part[fp8_edge];
  source.load(part, at);
  write_tile<T>(part, rows, columns, at, memory);
}

// Largest magnitudes of rows, of columns, or of everything, as the forms want them.
template <class T, bool gathered>
__global__ void __launch_bounds__(fp8_threads)
    find_largest(FormOut rows, FormOut columns, Source<T, gathered> source, Extents extents) {
  __shared__ TileMemory memory;
  const TilePlace at = extents.place();
  TilePart<T> part[fp8_edge];
  source.load(part, at);
  float of_rows[fp8_edge], of_columns[fp8_edge];
  measure_tile<T>(part, of_rows, of_columns);
  const float square = largest_of_tile(of_rows, memory);
  raise_tensor(rows, square);
  raise_tensor(columns, square);
  if (rows.codes != nullptr && rows.scaling == Fp8Scaling::row && at.across() == 0) {
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      if (at.row() + r < at.rows) raise(rows.scales + at.row() + r, of_rows[r]);
    }
  }
  if (columns.codes != nullptr && columns.scaling == Fp8Scaling::row) {
    largest_of_columns(of_columns, at, memory);
    if (at.down() != 0) return;
#pragma unroll
    for (int j = 0; j < fp8_edge; ++j) {
      if (at.col() + j < at.cols) raise(columns.scales + at.col() + j, of_columns[j]);
    }
  }
}

// Largest magnitudes become scales.
__global__ void make_scales(float* scales, std::int64_t count, bool e5m2) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) scales[i] = scale_of(scales[i], e5m2);
}

// source: with `rows` rows and `cols` columns.
template <class T, bool gathered>
void write_forms(Exec& exec, const Fp8Forms& to, const Source<T, gathered>& source, std::int64_t rows,
                 std::int64_t cols) {
  const cudaStream_t stream = stream_of(exec);
  const FormOut by_rows = form_out(to.rows), by_columns = form_out(to.columns);
  const std::int64_t row_blocks = (rows + fp8_tile - 1) / fp8_tile, col_blocks = (cols + fp8_tile - 1) / fp8_tile;
  const Extents extents{rows, cols, static_cast<unsigned>(col_blocks)};
  const auto blocks = static_cast<unsigned>(row_blocks * col_blocks);
  if (clear_largest(exec, to)) {
    find_largest<T, gathered><<<blocks, fp8_threads, 0, stream>>>(by_rows, by_columns, source, extents);
  }
  quantise<T, gathered><<<blocks, fp8_threads, 0, stream>>>(by_rows, by_columns, source, extents);
  check_launch("quantise_fp8");
  largest_to_scales(exec, to);
}

bool needs_largest(const Fp8Matrix& m) {
  return !m.absent() && (m.scaling == Fp8Scaling::row || m.scaling == Fp8Scaling::tensor);
}

}  // namespace

bool clear_largest(Exec& exec, const Fp8Forms& forms) {
  bool any = false;
  for (const Fp8Matrix* m : {&forms.rows, &forms.columns}) {
    if (!needs_largest(*m)) continue;
    exec.fill_zero(m->scales);
    any = true;
  }
  return any;
}

void largest_to_scales(Exec& exec, const Fp8Forms& forms) {
  for (const Fp8Matrix* m : {&forms.rows, &forms.columns}) {
    if (!needs_largest(*m)) continue;
    const std::int64_t count = m->scales.size();
    make_scales<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream_of(exec)>>>(
        static_cast<float*>(m->scales.data()), count, m->codes.dtype() == DType::e5m2);
    check_launch("scales of fp8");
  }
}

void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x) {
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    write_forms(exec, to, Source<T, false>{pointer<T>(x), x.ld(), vectors_fit(fp8_edge, x)}, x.dim(0), x.dim(1));
  });
}

void moe_gather_fp8(Exec& exec, const Fp8Forms& to, ConstView from, const ExpertOrder& order) {
  with_activation_type(from.dtype(), [&](auto type) {
    using T = decltype(type);
    const Source<T, true> source{pointer<T>(from), from.ld(), vectors_fit(fp8_edge, from),
                                 pointer<std::int32_t>(order.pairs), static_cast<int>(order.rows.dim(1))};
    write_forms(exec, to, source, order.pairs.dim(0), from.dim(1));
  });
}

}  // namespace inlay::ops::cuda
