#include <algorithm>
#include <array>

#include "backend/cuda/grouped_matmul.h"
#include "backend/cuda/grouped_tiles.cuh"
#include "backend/cuda/hopper.cuh"

// Grouped products on Hopper. A block computes tiles of 128 x `columns`, 64 deep a step: one warpgroup has the copy
// engine fill a ring of stages in shared memory, two warpgroups multiply, 64 rows each. Blocks are persistent and work
// in clusters of two, on neighbouring tiles: each fetches half of the operand that both read, so that L2 gives it
// once. Tiles are handed out by their number; every block finds the groups they belong to from the offsets by itself.
namespace inlay::backend::cuda {

namespace {

using bf16_t = __nv_bfloat16;

constexpr int tile_rows = 128, depth = 64, half_rows = 64, stages = 4, cluster = 2, warpgroup = 128;
constexpr int consumers = 2, threads = (1 + consumers) * warpgroup;
constexpr int box_bytes = 64 * 128;  // 64 lines of 64 elements
constexpr int a_bytes = tile_rows * depth * 2;

// The three products of a weight: by groups with B [N, K] or [K, N], and over rows.
enum class Product { forward, backward_input, over_rows };

template <Product product, int columns_>
struct Kind {
  static constexpr int columns = columns_;
  static constexpr bool over_rows = product == Product::over_rows;
  static constexpr bool along_k_a = !over_rows, along_k_b = product == Product::forward;
  // The two blocks of a cluster have A in common, on neighbouring columns, or B, on neighbouring rows. B is the larger
  // half of what is fetched, but row tiles come in twos then; measured, it pays for one of the three.
  static constexpr bool shares_b = product == Product::backward_input;
  // What the two blocks of a cluster work on together.
  static constexpr int high = shares_b ? cluster * tile_rows : tile_rows, wide = shares_b ? columns : cluster * columns;
  static constexpr int b_boxes = (columns + 63) / 64;  // where B is not along k
  static constexpr int b_bytes = along_k_b ? columns * depth * 2 : b_boxes * box_bytes;
};

// What a kernel is told besides the copy engine's maps of A and B.
struct Task {
  const std::int32_t* offsets;
  int groups;
  int m, n, k;  // m: over rows, k: by groups
  bool accumulate;
  float alpha;
  std::int64_t ldc;
  bf16_t* c;                     // by groups
  GroupPointers<float> results;  // over rows
};

template <class K>
struct Shared {
  alignas(1024) std::byte a[stages][a_bytes];
  alignas(1024) std::byte b[stages][K::b_bytes];
  hopper::Barrier full[stages], empty[stages];
  std::int32_t offsets[most_groups + 1];
};

struct Tile {
  int group;
  int row, row_end;  // of C (by groups: of all rows), and where the group's rows end
  int column;        // of this block
  int k, k_end;      // by groups: columns of A; over rows: rows of A and B
};

// Tile pairs in order: groups, pairs of column tiles, row tiles. Numbers only grow, so groups are passed once.
template <class K>
class Walk {
 public:
  __device__ Walk(const Task& task, const std::int32_t* offsets, int rank)
      : task_(task), offsets_(offsets), rank_(rank) {}

  __device__ bool find(int number, Tile& tile) {
    const int pairs = (task_.n + K::wide - 1) / K::wide;
    for (; group_ < task_.groups; ++group_) {
      const int begin = offsets_[group_], end = offsets_[group_ + 1];
      const int rows = K::over_rows ? (task_.results.data[group_] == nullptr ? 0 : task_.m) : end - begin;
      const int row_tiles = (rows + K::high - 1) / K::high;
      if (number < before_ + row_tiles * pairs) {
        const int inside = number - before_, pair = inside / row_tiles;
        const int row = inside % row_tiles * K::high + (K::shares_b ? rank_ * tile_rows : 0);
        const int column = pair * K::wide + (K::shares_b ? 0 : rank_ * K::columns);
        tile = K::over_rows ? Tile{group_, row, task_.m, column, begin, end}
                            : Tile{group_, begin + row, end, column, 0, task_.k};
        return true;
      }
      before_ += row_tiles * pairs;
    }
    return false;
  }

 private:
  const Task& task_;
  const std::int32_t* offsets_;
  int rank_, group_ = 0, before_ = 0;
};

// Goes round the stages; the parity tells one round from the next.
struct Ring {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One thread: keeps the stages full.
template <class K>
__device__ __forceinline__ void produce(Shared<K>& shared, const CUtensorMap& a_map, const CUtensorMap& b_map,
                                        const Task& task, int rank, int first, int step) {
  constexpr std::uint16_t both = (1 << cluster) - 1;
  Walk<K> walk(task, shared.offsets, rank);
  Tile tile{};
  Ring ring;
  for (int number = first; walk.find(number, tile); number += step) {
    for (int k = tile.k; k < tile.k_end; k += depth, ring.advance()) {
      hopper::wait(&shared.empty[ring.stage], ring.parity ^ 1);
      hopper::Barrier* full = &shared.full[ring.stage];
      hopper::arrive_expecting(full, a_bytes + K::b_bytes);
      const auto copy_a = [&](int half, bool to_all) {
        std::byte* a = shared.a[ring.stage] + half * box_bytes;
        const int row = tile.row + half * half_rows;
        const int x = K::along_k_a ? k : row, y = K::along_k_a ? row : k;
        to_all ? hopper::copy_box_to_all(a, &a_map, full, x, y, 0, both) : hopper::copy_box(a, &a_map, full, x, y, 0);
      };
      std::byte* b = shared.b[ring.stage];
      const int z = K::over_rows ? 0 : tile.group;
      if constexpr (K::shares_b) {
        copy_a(0, false);
        copy_a(1, false);
        static_assert(!K::along_k_b);
#pragma unroll
        for (int i = 0; i < K::b_boxes / cluster; ++i) {
          const int box = rank * (K::b_boxes / cluster) + i;
          hopper::copy_box_to_all(b + box * box_bytes, &b_map, full, tile.column + box * 64, k, z, both);
        }
      } else {
        copy_a(rank, true);
        if constexpr (K::along_k_b) {
          hopper::copy_box(b, &b_map, full, k, tile.column, z);
        } else {
#pragma unroll
          for (int i = 0; i < K::b_boxes; ++i) {
            hopper::copy_box(b + i * box_bytes, &b_map, full, tile.column + i * 64, k, z);
          }
        }
      }
    }
  }
}

// A stage is free for both blocks' copies once all warps of both have read it.
__device__ __forceinline__ void release(hopper::Barrier* empty) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < cluster) hopper::arrive_in(empty, lane);
}

// Rows of A from `count` on belong to the next group: they count as zero. `a` is this warpgroup's box, read by it
// alone.
__device__ __forceinline__ void clear_rows(std::byte* a, int count, int which) {
  uint4* lines = reinterpret_cast<uint4*>(a + count * 128);
  for (int i = static_cast<int>(threadIdx.x) % warpgroup; i < (depth - count) * 8; i += warpgroup) {
    lines[i] = make_uint4(0, 0, 0, 0);
  }
  hopper::publish_stores();
  asm volatile("bar.sync %0, %1;" ::"r"(1 + which), "n"(warpgroup) : "memory");
}

// sums = this warpgroup's half of the tile.
template <class K>
__device__ __forceinline__ void multiply(float (&sums)[K::columns / 8][4], Shared<K>& shared, const Tile& tile,
                                         Ring& ring, int which) {
  constexpr int group = 1024, k_step = 16;
#pragma unroll
  for (int i = 0; i < K::columns / 2; ++i) sums[i / 4][i % 4] = 0.0f;
  hopper::Barrier* previous = nullptr;
  for (int k = tile.k; k < tile.k_end; k += depth, ring.advance()) {
    hopper::wait(&shared.full[ring.stage], ring.parity);
    std::byte* a = shared.a[ring.stage] + which * box_bytes;
    const std::byte* b = shared.b[ring.stage];
    if (K::over_rows && tile.k_end - k < depth) clear_rows(a, tile.k_end - k, which);
    hopper::pin(sums);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < depth / k_step; ++i) {
      // k_step elements further: within the line, or so many lines.
      const std::uint64_t left =
          hopper::describe(hopper::shared_address(a + i * k_step * (K::along_k_a ? 2 : 128)), box_bytes, group);
      const std::uint64_t right =
          hopper::describe(hopper::shared_address(b + i * k_step * (K::along_k_b ? 2 : 128)), box_bytes, group);
      hopper::wgmma<K::along_k_a ? 0 : 1, K::along_k_b ? 0 : 1>(sums, left, right);
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

__device__ __forceinline__ std::uint32_t packed(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Word i of lane q becomes word q of lane i, within every four lanes.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&word)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      std::uint32_t& low = word[i];
      std::uint32_t& high = word[i | bit];
      const bool upper = (lane & bit) != 0;
      const std::uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
      (upper ? low : high) = received;
    }
  }
}

// Adds what C holds to a pair of neighbouring sums.
__device__ __forceinline__ void add_before(float& x, float& y, const bf16_t* at) {
  const float2 before = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
  x += before.x;
  y += before.y;
}

// A thread's sums lie in pairs of columns; four lanes exchange theirs, so that each stores 16 bytes of its own.
template <int columns>
__device__ __forceinline__ void write_rows(const float (&sums)[columns / 8][4], const Task& task, const Tile& tile,
                                           int which) {
  const int thread = static_cast<int>(threadIdx.x) % warpgroup, quad_lane = thread % 4;
  const int row = tile.row + which * half_rows + thread / 32 * 16 + thread % 32 / 4;
  constexpr int eights = columns / 8, whole = eights / 4 * 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {  // row, and row + 8
    bf16_t* to = task.c + (row + 8 * side) * task.ldc + tile.column;
    const bool exists = row + 8 * side < tile.row_end;
#pragma unroll
    for (int j = 0; j < whole; j += 4) {
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = task.alpha * sums[j + i][2 * side], y = task.alpha * sums[j + i][2 * side + 1];
        const int pair = 8 * (j + i) + 2 * quad_lane;
        if (task.accumulate && exists && tile.column + pair < task.n) add_before(x, y, to + pair);
        word[i] = packed(x, y);
      }
      transpose_in_quad(word);
      const int column = 8 * (j + quad_lane);
      if (exists && tile.column + column < task.n) {
        store_global(reinterpret_cast<uint4*>(to + column), word[0], word[1], word[2], word[3]);
      }
    }
#pragma unroll
    for (int j = whole; j < eights; ++j) {
      if (!exists || tile.column + 8 * j >= task.n) continue;
      bf16_t* at = to + 8 * j + 2 * quad_lane;
      float x = task.alpha * sums[j][2 * side], y = task.alpha * sums[j][2 * side + 1];
      if (task.accumulate) add_before(x, y, at);
      *reinterpret_cast<std::uint32_t*>(at) = packed(x, y);
    }
  }
}

// Two lanes exchange, so that each stores four neighbouring sums.
template <int columns>
__device__ __forceinline__ void write_result(const float (&sums)[columns / 8][4], const Task& task, const Tile& tile,
                                             int which) {
  const int thread = static_cast<int>(threadIdx.x) % warpgroup, quad_lane = thread % 4;
  const int row = tile.row + which * half_rows + thread / 32 * 16 + thread % 32 / 4;
  const bool upper = (quad_lane & 1) != 0;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float* to = task.results.data[tile.group] + (row + 8 * side) * task.ldc + tile.column;
    const bool exists = row + 8 * side < tile.row_end;
#pragma unroll
    for (int j = 0; j < columns / 8; j += 2) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = sums[j][2 * side + i], high = sums[j + 1][2 * side + i];
        const float received = __shfl_xor_sync(0xffffffffu, upper ? low : high, 1);
        value[i] = upper ? received : low;
        value[2 + i] = upper ? high : received;
      }
      const int column = 8 * (j + (upper ? 1 : 0)) + quad_lane / 2 * 4;
      if (!exists || tile.column + column >= task.n) continue;
      float before[4] = {};
      if (task.accumulate) load(before, to + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = task.alpha * value[i] + before[i];
      store(to + column, value);
    }
  }
}

template <class K>
__device__ __forceinline__ void consume(Shared<K>& shared, const Task& task, int rank, int first, int step) {
  const int which = static_cast<int>(threadIdx.x) / warpgroup - 1;
  Walk<K> walk(task, shared.offsets, rank);
  Tile tile{};
  Ring ring;
  for (int number = first; walk.find(number, tile); number += step) {
    float sums[K::columns / 8][4];
    multiply<K>(sums, shared, tile, ring, which);
    if constexpr (K::over_rows) {
      write_result<K::columns>(sums, task, tile, which);
    } else {
      write_rows<K::columns>(sums, task, tile, which);
    }
  }
}

#endif

template <class K>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)
    grouped(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
            const __grid_constant__ Task task) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic[];
  const auto address = reinterpret_cast<std::uintptr_t>(dynamic);
  auto& shared = *reinterpret_cast<Shared<K>*>(dynamic + (1024 - address % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), rank = hopper::rank_in_cluster();
  if (thread == 0) {
    hopper::prefetch_map(&a_map);
    hopper::prefetch_map(&b_map);
    for (int i = 0; i < stages; ++i) {
      hopper::init_barrier(&shared.full[i], 1);
      hopper::init_barrier(&shared.empty[i], cluster * consumers * 4);  // a lane of each warp of both blocks
    }
    hopper::publish_barriers();
  }
  for (int g = thread; g <= task.groups; g += threads) shared.offsets[g] = task.offsets[g];
  __syncthreads();
  hopper::sync_cluster();

  const int first = static_cast<int>(blockIdx.x) / cluster, step = static_cast<int>(gridDim.x) / cluster;
  if (thread < warpgroup) {
    hopper::give_registers<40>();
    if (thread == 0) produce<K>(shared, a_map, b_map, task, rank, first, step);
  } else {
    hopper::take_registers<232>();
    consume<K>(shared, task, rank, first, step);
  }
  __syncwarp();
  hopper::sync_cluster();  // nobody leaves while the other may still write into its shared memory
#endif
}

// ---- host -----------------------------------------------------------------------------------------------------------

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, without linking against the driver.
Encode encoder() {
  static const Encode function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result),
          "grouped_matmul");
    INLAY_ASSERT(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(address);
  }();
  return function;
}

// Boxes of 64 columns and `lines` rows of one of `count` matrices; what lies outside of them reads as zero.
CUtensorMap map_of(const ConstView& matrix, std::int64_t count, std::int64_t stride, int lines) {
  CUtensorMap map;
  const std::array<cuuint64_t, 3> extents = {static_cast<cuuint64_t>(matrix.dim(1)),
                                             static_cast<cuuint64_t>(matrix.dim(0)), static_cast<cuuint64_t>(count)};
  const std::array<cuuint64_t, 2> strides = {static_cast<cuuint64_t>(matrix.ld()) * 2,
                                             static_cast<cuuint64_t>(stride) * 2};
  const std::array<cuuint32_t, 3> box = {64, static_cast<cuuint32_t>(lines), 1}, steps = {1, 1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(matrix.data()), extents.data(),
                strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  INLAY_ASSERT(result == CUDA_SUCCESS, "grouped_matmul: no tensor map of {} with rows {} apart: error {}",
               matrix.shape().str(), matrix.ld(), static_cast<int>(result));
  return map;
}

// B of a product: `count` matrices.
struct Right {
  ConstView matrix;
  std::int64_t count, stride;
};

template <class K>
void launch(Exec& exec, const ConstView& a, const Right& b, const Task& task) {
  constexpr std::size_t bytes = sizeof(Shared<K>) + 1024;  // to begin at a kilobyte
  const auto kernel = grouped<K>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "grouped_matmul");
  const CUtensorMap a_map = map_of(a, 1, a.dim(0) * a.ld(), 64);
  const CUtensorMap b_map = map_of(b.matrix, b.count, b.stride, K::along_k_b ? K::columns : 64);
  const int blocks = gpu(exec).multiprocessors() / cluster * cluster;
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream_of(exec)>>>(a_map, b_map, task);
  check_launch("grouped_matmul");
}

// With the tile's columns with which least is computed in vain.
template <Product product>
void launch(Exec& exec, const ConstView& a, const Right& b, const Task& task) {
  using Narrow = Kind<product, 240>;
  using Wide = Kind<product, 256>;
  const auto covered = [&](int wide) { return (task.n + wide - 1) / wide * wide; };
  covered(Narrow::wide) < covered(Wide::wide) ? launch<Narrow>(exec, a, b, task) : launch<Wide>(exec, a, b, task);
}

// The copy engine wants 16-byte strides, and every stored vector lies inside or outside of C as a whole.
bool fits(const ConstView& view) { return vectors_fit(8, view) && view.size() > 0; }

bool on_hopper(Exec& exec, const ConstView& a) {
#ifdef INLAY_BUILT_FOR_SM90A
  return a.dtype() == DType::bf16 && gpu(exec).properties().major == 9;
#else
  (void)exec, (void)a;
  return false;
#endif
}

// Elements from one matrix to the next, or 0 where they are not evenly spaced.
std::int64_t even_stride(std::span<const ConstView> views) {
  if (views.size() == 1) return views[0].dim(0) * views[0].ld();
  const auto at = [&](std::size_t g) { return static_cast<const bf16_t*>(views[g].data()); };
  const std::int64_t stride = at(1) - at(0);
  for (std::size_t g = 1; g < views.size(); ++g) {
    if (at(g) - at(g - 1) != stride || views[g].ld() != views[0].ld()) return 0;
  }
  return stride > 0 && stride % 8 == 0 ? stride : 0;
}

}  // namespace

bool grouped_hopper(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale) {
  if (!on_hopper(exec, a) || !fits(a) || !fits(c) || !fits(b[0])) return false;
  const std::int64_t stride = even_stride(b);
  if (stride == 0) return false;
  Task task{};
  task.offsets = pointer<std::int32_t>(offsets);
  task.groups = static_cast<int>(b.size());
  task.n = static_cast<int>(c.dim(1));
  task.k = static_cast<int>(a.dim(1));
  task.accumulate = scale.beta != 0;
  task.alpha = scale.alpha;
  task.c = pointer<bf16_t>(c);
  task.ldc = c.ld();
  const Right right{b[0], static_cast<std::int64_t>(b.size()), stride};
  transpose_b == Transpose::yes ? launch<Product::forward>(exec, a, right, task)
                                : launch<Product::backward_input>(exec, a, right, task);
  return true;
}

bool grouped_hopper_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha) {
  if (!on_hopper(exec, a) || !fits(a) || !fits(b)) return false;
  for (const View& matrix : c) {
    if (!matrix.absent() && !vectors_fit(8, matrix)) return false;
  }
  Task task{};
  task.offsets = pointer<std::int32_t>(offsets);
  task.groups = static_cast<int>(c.size());
  task.m = static_cast<int>(a.dim(1));
  task.n = static_cast<int>(b.dim(1));
  task.accumulate = mode == Grad::accumulate;
  task.alpha = alpha;
  task.results = group_pointers<float>(c);
  task.ldc = common_ld(c);
  launch<Product::over_rows>(exec, a, {b, 1, b.dim(0) * b.ld()}, task);
  return true;
}

}  // namespace inlay::backend::cuda
