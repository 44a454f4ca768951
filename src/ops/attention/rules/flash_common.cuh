#pragma once

#include "ops/attention/rules/arithmetic.h"
#include "ops/attention/rules/flash_task.h"
#include "ops/attention/rules/tile_products.cuh"

// What the kernels of attention by a rule share. A rule is a class with
//   static constexpr bool scored;                                    it changes scores
//   bool visible(const Place&, float query, float key);              the mask
//   float score(const Place&, float query, float key, float s);      the score it makes of s
//   float score(…, float s, float& slope);                           with its derivative
//   Interval visible(const Place&, const Interval& query, const Interval& key);   the mask over a tile
// Compiled at run time: no headers but ours.
namespace inlay::ops::flash {

using rules::Interval;
using rules::Place;

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What scores are made with: single instructions of the hardware, which the library's versions surround with others for
// numbers near the ends of the range.
__device__ __forceinline__ float fast_exp(float x) { return exp2_of(x * log2_e); }
__device__ __forceinline__ float fast_divide(float x, float y) { return x * reciprocal_of(y); }
// To a few 1e-7 absolutely.
__device__ __forceinline__ float fast_tanh(float x) {
  return fmaf(-2.0f, reciprocal_of(1.0f + exp2_of(x * (2.0f * log2_e))), 1.0f);
}

// A tile of one document. Positions count from the document's first token.
struct DocumentTile {
  int document, begin;  // the document, and its first token in the batch
  int length;           // its tokens
  int first;            // the tile's first position
  __device__ bool empty() const { return first >= length; }
};

// Tile numbers without a table: document i's tiles begin at number floor(cu_seqlens[i] / rows) + i. The next
// document's then begin behind its last, and at most one number a document is left over, which is an empty tile.
__device__ __forceinline__ DocumentTile find_tile(const Task& task, int number) {
  int low = 0, high = task.documents - 1;  // the last document that begins at or before the number
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (task.cu_seqlens[middle] / block_rows + middle <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int begin = task.cu_seqlens[low];
  return {low, begin, task.cu_seqlens[low + 1] - begin, (number - begin / block_rows - low) * block_rows};
}

__device__ __forceinline__ Place place_of(const Task& task, const DocumentTile& tile, int head) {
  return {static_cast<float>(head),
          static_cast<float>(tile.document),
          static_cast<float>(tile.length),
          task.prefix_lengths == nullptr ? 0.0f : static_cast<float>(task.prefix_lengths[tile.document]),
          static_cast<float>(task.heads),
          task.head_bias == nullptr ? 0.0f : task.head_bias[head]};
}

__device__ __forceinline__ Interval positions(int first, int count, int length) {
  return {static_cast<float>(first), static_cast<float>(min(first + count, length) - 1)};
}

// The tiles of the other side that the block meets, ascending; the highest bit says that not all pairs of it are seen.
constexpr unsigned partial_bit = 0x8000u;

// kind_of(first position) is the mask's interval over a tile. Returns how many there are; the list is complete for all
// threads.
template <int columns, class KindOf>
__device__ __forceinline__ int list_tiles(unsigned short* list, int length, const KindOf& kind_of) {
  __shared__ int counts[threads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (length + columns - 1) / columns;
  int total = 0;
  for (int base = 0; base < tiles; base += threads) {
    const int tile = base + threadIdx.x;
    Interval seen{0.0f, 0.0f};
    if (tile < tiles) seen = kind_of(tile * columns);
    const bool whole = seen.low == 1.0f && (tile + 1) * columns <= length;
    const unsigned met = __ballot_sync(0xffffffffu, seen.high != 0.0f);
    if (lane == 0) counts[warp] = __popc(met);
    __syncthreads();
    int at = total + __popc(met & ((1u << lane) - 1));
#pragma unroll
    for (int other = 0; other < threads / 32; ++other) {
      if (other < warp) at += counts[other];
      total += counts[other];
    }
    if (seen.high != 0.0f) list[at] = static_cast<unsigned short>(tile | (whole ? 0 : partial_bit));
    __syncthreads();
  }
  return total;
}

// Begins to copy `rows` tokens of a head from a position on; tokens past the document's end are zero. A thread moves
// the same piece of every so many rows, so that its addresses differ by constants.
template <int rows, int head_size>
__device__ __forceinline__ void fetch_tile(unsigned to, const Tokens& from, int head, const DocumentTile& tile,
                                           int first) {
  constexpr int across = head_size <= 64 ? 8 : head_size <= 128 ? 16 : 32, step = threads / across;
  const int row = threadIdx.x / across, chunk = threadIdx.x % across;
  if (head_size % (8 * across) != 0 && chunk * 8 >= head_size) return;
  const int remaining = tile.length - first - row;
  const unsigned short* source =
      from.data + (tile.begin + first + row) * from.token_stride + head * from.head_stride + chunk * 8;
  const unsigned target = address_of<rows>(to, row, chunk);
#pragma unroll
  for (int i = 0; i < rows / step; ++i) {
    // With a size of 0 nothing is read, wherever the address points.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target + i * (step * line_bytes)),
                 "l"(__cvta_generic_to_global(source + i * step * from.token_stride)),
                 "r"(i * step < remaining ? 16 : 0)
                 : "memory");
  }
}
// Begins to copy a number of a query; 0 past the document's end.
__device__ __forceinline__ void fetch_number(float* to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All copies that this thread began are there, and after the barrier all threads'.
__device__ __forceinline__ void await_fetches() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  publish_tiles();
  __syncthreads();
}

// A thread's place among the sums of its warpgroup.
struct Lane {
  int group = threadIdx.x / 128;                           // the warpgroup
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // in the block; the other one is 8 below
  int column = threadIdx.x % 4 * 2;                        // the other one is beside it
};

// to[first + row] = factor[row's half] · sums, bf16.
template <int head_size>
__device__ __forceinline__ void write_rows(const Tokens& to, int head, const DocumentTile& tile,
                                           const float (&sums)[head_size / 8][4], float upper, float lower) {
  const Lane lane;
  unsigned short* base = to.data + tile.begin * to.token_stride + head * to.head_stride + lane.column;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = tile.first + lane.row + 8 * half;
    if (position >= tile.length) continue;
    unsigned short* line = base + position * to.token_stride;
    const float factor = half == 0 ? upper : lower;
#pragma unroll
    for (int j = 0; j < head_size / 8; ++j) {
      *reinterpret_cast<unsigned*>(line + 8 * j) = packed(sums[j][2 * half] * factor, sums[j][2 * half + 1] * factor);
    }
  }
}

}  // namespace inlay::ops::flash
