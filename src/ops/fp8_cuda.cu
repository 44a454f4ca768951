#include "backend/cuda/context_internal.h"
#include "ops/fp8_tile.cuh"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

template <class T>
struct Source {
  const T* data;
  std::int64_t ld;
  bool vectors;

  // Zeros where there is nothing.
  __device__ __forceinline__ void load(TilePart<T> (&part)[fp8_edge], const TilePlace& at) const {
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      part[r].clear();
      if (at.row() + r >= at.rows) continue;
      const T* from = data + (at.row() + r) * ld + at.col();
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

template <class T>
__global__ void __launch_bounds__(fp8_threads, 2)
    quantise(FormOut rows, FormOut columns, Source<T> source, Extents extents) {
  __shared__ TileMemory memory;
  const TilePlace at = extents.place();
  TilePart<T> part[fp8_edge];
  source.load(part, at);
  write_tile<T>(part, rows, columns, at, memory);
}

// Largest magnitudes of rows, of columns, or of everything, as the forms want them.
template <class T>
__global__ void __launch_bounds__(fp8_threads)
    find_largest(FormOut rows, FormOut columns, Source<T> source, Extents extents) {
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
  const cudaStream_t stream = stream_of(exec);
  const FormOut rows = form_out(to.rows), columns = form_out(to.columns);
  const std::int64_t row_blocks = (x.dim(0) + fp8_tile - 1) / fp8_tile,
                     col_blocks = (x.dim(1) + fp8_tile - 1) / fp8_tile;
  const Extents extents{x.dim(0), x.dim(1), static_cast<unsigned>(col_blocks)};
  const auto blocks = static_cast<unsigned>(row_blocks * col_blocks);
  const bool measured = clear_largest(exec, to);
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Source<T> source{pointer<T>(x), x.ld(), vectors_fit(fp8_edge, x)};
    if (measured) find_largest<T><<<blocks, fp8_threads, 0, stream>>>(rows, columns, source, extents);
    quantise<T><<<blocks, fp8_threads, 0, stream>>>(rows, columns, source, extents);
  });
  check_launch("quantise_fp8");
  largest_to_scales(exec, to);
}

}  // namespace inlay::ops::cuda
