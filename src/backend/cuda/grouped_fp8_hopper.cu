#include "backend/cuda/grouped_hopper.cuh"
#include "backend/cuda/grouped_matmul.h"

// Grouped products of fp8 on Hopper. Both operands are contiguous along k, so that there is one kernel by groups and
// one over rows; a stage is a block of 128 along k. Where sums are in fp32 the tensor cores sum one stage at a time,
// half of the tile's columns after the other, and what they have summed, times the scales that blocks have, is added up
// by the threads; while one warpgroup does so, the other's products run. Scales of rows and of whole matrices come
// last.
namespace inlay::backend::cuda {

namespace {

using namespace grouped;

constexpr int block = static_cast<int>(fp8_block);

// What the kernel is told beside: scales. Those of B are of the first group, `stride` from group to group.
struct Fp8Task : Task {
  struct Scales {
    const float* data;
    std::int64_t stride;
    int ld, rows;  // rows: of the operand
  };
  Fp8Scaling scaling;  // A's: tensor, row or vector; B's is alike, but squares to vectors
  Scales a, b;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ int block_of(int x) { return static_cast<int>(static_cast<unsigned>(x) / block); }

// Of the four bytes that lie at `at` of a line, those outside of begin .. end - 1 become zero.
__device__ __forceinline__ std::uint32_t kept_bytes(std::uint32_t word, int at, int begin, int end) {
  const int low = min(max(begin - at, 0), 4), count = min(max(end - at, 0), 4) - low;
  return count <= 0 ? 0 : word & (0xffffffffu >> (32 - 8 * count)) << 8 * low;
}

// Bytes of A's lines outside of begin .. end - 1 belong to other groups: they count as zero. `a` is this warpgroup's
// box, read by it alone. B stays as it is: its codes are numbers unless their scale is none, and a scale that reaches
// into this group's rows makes the same sums NaN by itself.
__device__ __forceinline__ void clear_outside(std::byte* a, int begin, int end, int which) {
  uint4* pieces = reinterpret_cast<uint4*>(a);
  for (int i = static_cast<int>(threadIdx.x) % warpgroup; i < half_rows * 8; i += warpgroup) {
    const int at = 16 * ((i ^ i / 8) % 8);  // the copy engine has exchanged the pieces of a line
    if (at >= begin && at + 16 <= end) continue;
    uint4 piece = pieces[i];
    piece.x = kept_bytes(piece.x, at, begin, end);
    piece.y = kept_bytes(piece.y, at + 4, begin, end);
    piece.z = kept_bytes(piece.z, at + 8, begin, end);
    piece.w = kept_bytes(piece.w, at + 12, begin, end);
    pieces[i] = piece;
  }
  publish_to_warpgroup(which);
}

// Where blocks along k have scales, what the sums of a stage count: factors of this thread's two rows, and of the
// squares of B that either half of the tile's columns touches. (They come from L1 while the products run.)
template <class K>
class StageScales {
 public:
  static constexpr int width = K::columns / 2, touched = width % block == 0 ? 1 : 2;

  __device__ StageScales(const Fp8Task& task, const Tile& tile, int which) : row_step_(task.a.ld) {
    const int first = block_of(first_stage<K>(tile)), last = block_of(task.b.rows - 1);
    squares_ = task.b.data + (K::over_rows ? 0 : tile.group * task.b.stride) + first;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row_of_thread(tile, which) + 8 * i, task.a.rows - 1), column = tile.column + i * width;
      rows_[i] = task.a.data + (first * task.a.ld + row);
      second_[i] = ~0u << (block - column % block) / 8;
#pragma unroll
      for (int t = 0; t < touched; ++t) square_[i][t] = min(block_of(column) + t, last) * task.b.ld;
    }
  }

  // Those of the next stage.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_row_[i] = __ldg(rows_[i]);
      rows_[i] += row_step_;
#pragma unroll
      for (int t = 0; t < touched; ++t) of_square_[i][t] = __ldg(squares_ + square_[i][t]);
    }
    ++squares_;
  }

  // sums of a half += scales · partial
  __device__ __forceinline__ void promote(float (&sums)[K::columns / 8][4], const float (&partial)[width / 8][4],
                                          int half) const {
    float factor[2][touched];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int t = 0; t < touched; ++t) factor[i][t] = of_row_[i] * of_square_[half][t];
    }
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      float(&to)[4] = sums[half * (width / 8) + j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool second = touched > 1 && (second_[half] >> j & 1u) != 0;
        to[i] = fmaf(second ? factor[i / 2][touched - 1] : factor[i / 2][0], partial[j][i], to[i]);
      }
    }
  }

 private:
  const float *rows_[2], *squares_;
  int row_step_, square_[2][touched];
  unsigned second_[2];  // bit j: columns from 8 j of a half on lie in the second square that it touches
  float of_row_[2], of_square_[2][touched];
};

// Scales of rows and of whole matrices.
template <class K>
__device__ __forceinline__ void scale_sums(float (&sums)[K::columns / 8][4], const Fp8Task& task, const Tile& tile,
                                           int which) {
  const float* b = task.b.data + (K::over_rows ? 0 : tile.group * task.b.stride);
  const bool rows = task.scaling == Fp8Scaling::row;
  float of_row[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_row[i] = __ldg(task.a.data + (rows ? min(row_of_thread(tile, which) + 8 * i, task.a.rows - 1) : 0));
  }
  float2 of_columns = make_float2(__ldg(b), __ldg(b));
  b += tile.column + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int j = 0; j < K::columns / 8; ++j) {
    if (rows && tile.column + 8 * j < task.n) of_columns = __ldg(reinterpret_cast<const float2*>(b + 8 * j));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] *= of_row[i / 2] * (i % 2 == 0 ? of_columns.x : of_columns.y);
  }
}

#endif

// How sums come about: by stages that have scales, by stages, or in the tensor cores.
enum class Sums { of_blocks, of_stages, fast };

template <bool over_rows, int columns>
using LayoutOf = Layout<columns, line_bytes, over_rows, true, true, false, true>;

template <bool over_rows_, bool e5m2, Sums kind, int columns>
struct Kind : LayoutOf<over_rows_, columns> {
  using K = LayoutOf<over_rows_, columns>;
  using Task = Fp8Task;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static constexpr int k_step = 32, steps = line_bytes / k_step;

  // Descriptions of a warpgroup's operands: the lower halves of those of the first stage; the upper ones are all alike.
  struct Operands {
    unsigned a, b;

    __device__ Operands(const Shared<Kind>& shared, int which)
        : a(static_cast<unsigned>(describe(hopper::shared_address(shared.a[0] + which * box_bytes)))),
          b(static_cast<unsigned>(describe(hopper::shared_address(shared.b[0])))) {}
    __device__ std::uint64_t left(unsigned stage, int step) const {
      return whole(a + stage * (a_bytes / 16) + step * (k_step / 16));
    }
    __device__ std::uint64_t right(unsigned stage, int step, int column) const {
      return whole(b + stage * (K::b_bytes / 16) + column * (line_bytes / 16) + step * (k_step / 16));
    }

   private:
    static __device__ std::uint64_t describe(unsigned address) { return hopper::describe(address, 0, 1024); }
    static __device__ std::uint64_t whole(unsigned lower) { return describe(0) | lower; }
  };

  // Until a stage has come.
  static __device__ __forceinline__ void await(Shared<Kind>& shared, const Tile& tile, const Ring& ring, int k,
                                               int which) {
    hopper::wait(&shared.full[ring.stage], ring.parity);
    if (K::over_rows && (k < tile.k || tile.k_end - k < K::depth)) {
      clear_outside(shared.a[ring.stage] + which * box_bytes, tile.k - k, tile.k_end - k, which);
    }
  }

  static __device__ __forceinline__ void multiply(float (&sums)[columns / 8][4], Shared<Kind>& shared, const Task& task,
                                                  const Tile& tile, Ring& ring, int which) {
    which = __shfl_sync(0xffffffffu, which, 0);  // now the compiler knows that it is the same in a warp
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sums[i / 4][i % 4] = 0.0f;
    if constexpr (kind == Sums::fast) {
      sum_in_tensor_cores(sums, shared, tile, ring, which);
    } else {
      sum_in_threads(sums, shared, task, tile, ring, which);
    }
    if constexpr (kind != Sums::of_blocks) scale_sums<K>(sums, task, tile, which);
  }

  static __device__ __forceinline__ void sum_in_threads(float (&sums)[columns / 8][4], Shared<Kind>& shared,
                                                        const Task& task, const Tile& tile, Ring& ring, int which) {
    constexpr int width = columns / 2;
    const Operands operands(shared, which);
    StageScales<K> scales(task, tile, which);  // not used, and so not there, where stages have none
    for (int k = first_stage<K>(tile); k < tile.k_end; k += K::depth, ring.advance()) {
      if constexpr (kind == Sums::of_blocks) scales.load();
      await(shared, tile, ring, k, which);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float partial[width / 8][4];
        hopper::begin_products();
        hopper::wgmma_fp8_first<e5m2>(partial, operands.left(ring.stage, 0),
                                      operands.right(ring.stage, 0, half * width));
#pragma unroll
        for (int i = 1; i < steps; ++i) {
          hopper::wgmma_fp8<e5m2>(partial, operands.left(ring.stage, i), operands.right(ring.stage, i, half * width));
        }
        hopper::end_products();
        hopper::await_products<0>();
        hopper::pin(partial);
        if (half == 1) release(&shared.empty[ring.stage]);
        if constexpr (kind == Sums::of_blocks) {
          scales.promote(sums, partial, half);
        } else {
#pragma unroll
          for (int i = 0; i < width / 2; ++i) sums[half * (width / 8) + i / 4][i % 4] += partial[i / 4][i % 4];
        }
      }
    }
  }

  static __device__ __forceinline__ void sum_in_tensor_cores(float (&sums)[columns / 8][4], Shared<Kind>& shared,
                                                             const Tile& tile, Ring& ring, int which) {
    const Operands operands(shared, which);
    hopper::Barrier* previous = nullptr;
    for (int k = first_stage<K>(tile); k < tile.k_end; k += K::depth, ring.advance()) {
      await(shared, tile, ring, k, which);
      hopper::pin(sums);
      hopper::begin_products();
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        hopper::wgmma_fp8<e5m2>(sums, operands.left(ring.stage, i), operands.right(ring.stage, i, 0));
      }
      hopper::end_products();
      hopper::pin(sums);
      hopper::await_products<1>();  // those of the stage before are done
      if (previous != nullptr) release(previous);
      previous = &shared.empty[ring.stage];
    }
    hopper::await_products<0>();
    hopper::pin(sums);
    if (previous != nullptr) release(previous);
  }
#endif
};

template <bool over_rows, Sums kind>
void launch(Exec& exec, const Fp8Matrix& a, const Right& b, const Fp8Task& task) {
  if (a.codes.dtype() == DType::e5m2) {
    launch_fitting<Kind<over_rows, true, kind, 240>, Kind<over_rows, true, kind, 256>>(exec, a.codes, b, task);
  } else {
    launch_fitting<Kind<over_rows, false, kind, 240>, Kind<over_rows, false, kind, 256>>(exec, a.codes, b, task);
  }
}

template <bool over_rows>
void launch(Exec& exec, const Fp8Matrix& a, const Right& b, const Fp8Task& task) {
  a.scaling == Fp8Scaling::vector ? launch<over_rows, Sums::of_blocks>(exec, a, b, task)
                                  : launch<over_rows, Sums::of_stages>(exec, a, b, task);
}

Fp8Task::Scales scales_of(const Fp8Matrix& m, std::int64_t stride) {
  return {.data = pointer<float>(m.scales),
          .stride = stride,
          .ld = m.scales.rank() == 2 ? static_cast<int>(m.scales.ld()) : 0,
          .rows = static_cast<int>(m.rows)};
}

}  // namespace

bool grouped_fp8_built() {
#ifdef INLAY_BUILT_FOR_SM90A
  return true;
#else
  return false;
#endif
}

void grouped_fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, std::span<const Fp8Matrix> b, ConstView offsets,
                        MatmulScale scale, Fp8Sums sums) {
  const auto stride_of = [&](View Fp8Matrix::*part) {
    const View& first = b[0].*part;
    const std::int64_t stride =
        even_stride(b.size(), size_of(first.dtype()), first.size(), [&](std::size_t g) { return (b[g].*part).data(); });
    INLAY_ASSERT(stride != 0, "grouped_fp8_matmul: matrices of groups that do not lie evenly");
    return stride;
  };
  Fp8Task task{};
  static_cast<Task&>(task) = task_of(offsets, b.size(), scale.beta != 0, scale.alpha);
  task.n = static_cast<int>(c.dim(1));
  task.k = static_cast<int>(a.cols);
  c.dtype() == DType::f32 ? void(task.floats = pointer<float>(c)) : void(task.c = pointer<bf16_t>(c));
  task.ldc = c.ld();
  task.scaling = a.scaling;
  task.a = scales_of(a, 0);
  task.b = scales_of(b[0], stride_of(&Fp8Matrix::scales));
  const Right right{b[0].codes, static_cast<std::int64_t>(b.size()), stride_of(&Fp8Matrix::codes)};
  INLAY_ASSERT(whole_sixteens(right.stride, 1), "grouped_fp8_matmul: codes of groups {} apart", right.stride);
  sums == Fp8Sums::fast ? launch<false, Sums::fast>(exec, a, right, task) : launch<false>(exec, a, right, task);
}

void grouped_fp8_matmul_over_rows(Exec& exec, std::span<const View> c, Grad mode, const Fp8Matrix& a,
                                  const Fp8Matrix& b, ConstView offsets, float alpha) {
  Fp8Task task{};
  static_cast<Task&>(task) = task_of(offsets, c.size(), mode == Grad::accumulate, alpha);
  task.m = static_cast<int>(a.rows);
  task.n = static_cast<int>(b.rows);
  task.results = group_pointers<float>(c);
  task.ldc = common_ld(c);
  task.scaling = a.scaling;
  task.a = scales_of(a, 0);
  task.b = scales_of(b, 0);
  launch<true>(exec, a, {b.codes, 1, b.codes.size()}, task);
}

}  // namespace inlay::backend::cuda
