#pragma once

#include <algorithm>
#include <array>

#include "backend/cuda/grouped_tiles.cuh"
#include "backend/cuda/hopper.cuh"

// Grouped products on Hopper, whatever they multiply. A block computes tiles of 128 x `columns`, 128 bytes of k deep a
// step: one warpgroup has the copy engine fill a ring of stages in shared memory, two warpgroups multiply, 64 rows
// each. Blocks are persistent and work in clusters of two, on neighbouring tiles: each fetches half of the operand that
// both read, so that L2 gives it once. Tiles are handed out by their number; every block finds the groups they belong
// to from the offsets by itself.
namespace inlay::backend::cuda::grouped {

using bf16_t = __nv_bfloat16;

inline constexpr int tile_rows = 128, half_rows = 64, stages = 4, cluster = 2, warpgroup = 128;
inline constexpr int consumers = 2, threads = (1 + consumers) * warpgroup;
inline constexpr int line_bytes = 128, box_bytes = 64 * line_bytes, a_bytes = tile_rows * line_bytes;

// How tiles lie. A kernel's kind is one of these, with
//   Task                                             what the kernel is told: the one below, or more
//   multiply(sums, shared, task, tile, ring, which)  sums = a warpgroup's half of the tile
template <int columns_, int depth_, bool over_rows_, bool along_k_a_, bool along_k_b_, bool shares_b_,
          bool writes_floats_ = false>
struct Layout {
  static constexpr int columns = columns_, depth = depth_;  // depth: elements of a line
  static constexpr bool over_rows = over_rows_, along_k_a = along_k_a_, along_k_b = along_k_b_;
  // The two blocks of a cluster have A in common, on neighbouring columns, or B, on neighbouring rows.
  static constexpr bool shares_b = shares_b_;
  // What the two blocks of a cluster work on together.
  static constexpr int high = shares_b ? cluster * tile_rows : tile_rows, wide = shares_b ? columns : cluster * columns;
  static constexpr int b_boxes = (columns + 63) / 64;  // where B is not along k
  static constexpr int b_bytes = along_k_b ? columns * line_bytes : b_boxes * box_bytes;
  static constexpr int b_lines = !along_k_b ? 64 : shares_b ? columns / cluster : columns;  // that are copied at once
  // Stages begin at multiples of their depth, also where a group does not.
  static constexpr bool aligned = over_rows && along_k_a;
  static constexpr bool writes_floats = writes_floats_;  // by groups, where the task says so
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
  float* floats;                 // by groups, in the place of c
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

// Where the first stage of a tile begins.
template <class K>
__device__ __forceinline__ int first_stage(const Tile& tile) {
  return K::aligned && tile.k < tile.k_end ? tile.k / K::depth * K::depth : tile.k;
}

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

// The first of the two rows of C that a thread of a warpgroup has sums of; the other is eight further.
__device__ __forceinline__ int row_of_thread(const Tile& tile, int which) {
  const int thread = static_cast<int>(threadIdx.x) % warpgroup;
  return tile.row + which * half_rows + thread / 32 * 16 + thread % 32 / 4;
}

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
    for (int k = first_stage<K>(tile); k < tile.k_end; k += K::depth, ring.advance()) {
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
        if constexpr (K::along_k_b) {
          hopper::copy_box_to_all(b + rank * K::b_lines * line_bytes, &b_map, full, k, tile.column + rank * K::b_lines,
                                  z, both);
        } else {
#pragma unroll
          for (int i = 0; i < K::b_boxes / cluster; ++i) {
            const int box = rank * (K::b_boxes / cluster) + i;
            hopper::copy_box_to_all(b + box * box_bytes, &b_map, full, tile.column + box * 64, k, z, both);
          }
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

// What this warpgroup, and nobody else, has stored into a stage is there for its products.
__device__ __forceinline__ void publish_to_warpgroup(int which) {
  hopper::publish_stores();
  asm volatile("bar.sync %0, %1;" ::"r"(1 + which), "n"(warpgroup) : "memory");
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
  const int quad_lane = static_cast<int>(threadIdx.x) % 4, row = row_of_thread(tile, which);
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

// Into a matrix of fp32: two lanes exchange, so that each stores four neighbouring sums.
template <int columns>
__device__ __forceinline__ void write_floats(const float (&sums)[columns / 8][4], const Task& task, const Tile& tile,
                                             float* matrix, int which) {
  const int quad_lane = static_cast<int>(threadIdx.x) % 4, row = row_of_thread(tile, which);
  const bool upper = (quad_lane & 1) != 0;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float* to = matrix + (row + 8 * side) * task.ldc + tile.column;
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
__device__ __forceinline__ void consume(Shared<K>& shared, const typename K::Task& task, int rank, int first,
                                        int step) {
  const int which = static_cast<int>(threadIdx.x) / warpgroup - 1;
  Walk<K> walk(task, shared.offsets, rank);
  Tile tile{};
  Ring ring;
  for (int number = first; walk.find(number, tile); number += step) {
    float sums[K::columns / 8][4];
    K::multiply(sums, shared, task, tile, ring, which);
    if constexpr (K::over_rows) {
      write_floats<K::columns>(sums, task, tile, task.results.data[tile.group], which);
    } else if (K::writes_floats && task.floats != nullptr) {
      write_floats<K::columns>(sums, task, tile, task.floats, which);
    } else {
      write_rows<K::columns>(sums, task, tile, which);
    }
  }
}

#endif

template <class K>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)
    multiply_groups(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                    const __grid_constant__ typename K::Task task) {
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
inline Encode encoder() {
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

// Boxes of 128 bytes of columns and `lines` rows of one of `count` matrices, `stride` elements apart; what lies outside
// of them reads as zero.
inline CUtensorMap map_of(const ConstView& matrix, std::int64_t count, std::int64_t stride, int lines) {
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype()));
  CUtensorMap map;
  const std::array<cuuint64_t, 3> extents = {static_cast<cuuint64_t>(matrix.dim(1)),
                                             static_cast<cuuint64_t>(matrix.dim(0)), static_cast<cuuint64_t>(count)};
  const std::array<cuuint64_t, 2> strides = {static_cast<cuuint64_t>(matrix.ld() * size),
                                             static_cast<cuuint64_t>(stride * size)};
  const std::array<cuuint32_t, 3> box = {static_cast<cuuint32_t>(line_bytes / size), static_cast<cuuint32_t>(lines), 1},
                                  steps = {1, 1, 1};
  const CUresult result = encoder()(&map, size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                    3, const_cast<void*>(matrix.data()), extents.data(), strides.data(), box.data(),
                                    steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
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
void launch(Exec& exec, const ConstView& a, const Right& b, const typename K::Task& task) {
  constexpr std::size_t bytes = sizeof(Shared<K>) + 1024;  // to begin at a kilobyte
  const auto kernel = multiply_groups<K>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "grouped_matmul");
  const CUtensorMap a_map = map_of(a, 1, a.dim(0) * a.ld(), 64);
  const CUtensorMap b_map = map_of(b.matrix, b.count, b.stride, K::b_lines);
  const int blocks = gpu(exec).multiprocessors() / cluster * cluster;
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream_of(exec)>>>(a_map, b_map, task);
  check_launch("grouped_matmul");
}

// With the tile's columns with which least is computed in vain.
template <class Narrow, class Wide>
void launch_fitting(Exec& exec, const ConstView& a, const Right& b, const typename Wide::Task& task) {
  const auto covered = [&](int wide) { return (task.n + wide - 1) / wide * wide; };
  covered(Narrow::wide) < covered(Wide::wide) ? launch<Narrow>(exec, a, b, task) : launch<Wide>(exec, a, b, task);
}

inline Task task_of(const ConstView& offsets, std::size_t groups, bool accumulate, float alpha) {
  Task task{};
  task.offsets = pointer<std::int32_t>(offsets);
  task.groups = static_cast<int>(groups);
  task.accumulate = accumulate;
  task.alpha = alpha;
  return task;
}

inline bool whole_sixteens(std::int64_t elements, std::size_t size) {
  return elements * static_cast<std::int64_t>(size) % 16 == 0;
}
// Elements from one matrix to the next, or 0 where they are not evenly spaced. The copy engine wants whole sixteen
// bytes.
template <class At>
std::int64_t even_stride(std::size_t count, std::size_t size, std::int64_t of_one, const At& at) {
  if (count == 1) return of_one;
  const auto address = [&](std::size_t g) { return static_cast<const std::byte*>(at(g)); };
  const std::int64_t stride = address(1) - address(0);
  for (std::size_t g = 1; g < count; ++g) {
    if (address(g) - address(g - 1) != stride) return 0;
  }
  return stride > 0 ? stride / static_cast<std::int64_t>(size) : 0;
}

}  // namespace inlay::backend::cuda::grouped
