#include "backend/cuda/context_internal.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/vec.cuh"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int lanes = 32, slots = 8;
constexpr int frequent = 16;  // rows of a token from which a block shares out its rows

// A block is 32 lanes wide and 8 slots deep, and there is one for every distinct token and every chunk of 32 vectors of
// columns. For a frequent token each slot sums every eighth row of the chunk, and the slots are added in their order.
// For a rare one (nearly all of them) every eighth block takes eight chunks at once, a slot each, and the others leave.
// dtable +=.
template <class T, int V>
__global__ void __launch_bounds__(lanes* slots)
    backward(float* dtable, const T* dout, std::int64_t dout_ld, const std::int32_t* order, const std::int32_t* starts,
             const std::int32_t* ids, int cols, int chunks) {
  __shared__ float shared[slots][lanes * V];
  const int group = static_cast<int>(blockIdx.x) / chunks, chunk = static_cast<int>(blockIdx.x) % chunks;
  const int slot = static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x);
  const int begin = starts[group], end = starts[group + 1];
  const bool shared_out = end - begin >= frequent;
  if (!shared_out && chunk % slots != 0) return;

  const int col = ((shared_out ? chunk : chunk + slot) * lanes + lane) * V;
  float sum[V] = {};
  if (col < cols) {
    add_up<T>(sum, begin + (shared_out ? slot : 0), end, shared_out ? slots : 1,
              [&](int i) { return dout + order[i] * dout_ld + col; });
  }
  if (shared_out) {
#pragma unroll
    for (int j = 0; j < V; ++j) shared[slot][j * lanes + lane] = sum[j];
    __syncthreads();
    if (slot != 0) return;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      for (int other = 1; other < slots; ++other) sum[j] += shared[other][j * lanes + lane];
    }
  }
  if (col >= cols) return;
  float* to = dtable + std::int64_t{ids[group]} * cols + col;
  float total[V];
  load(total, to);
#pragma unroll
  for (int j = 0; j < V; ++j) total[j] += sum[j];
  store(to, total);
}

}  // namespace

void embedding_forward(Exec& exec, View out, ConstView tokens, ConstView table) {
  gather_rows(exec, out, table, tokens);
}

void embedding_backward(Exec& exec, View dtable, ConstView dout, const TokenGroups& groups) {
  const auto cols = static_cast<int>(dout.dim(1));
  with_activation_type(dout.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, dtable, dout), [&](auto width) {
      const int chunks = (cols + lanes * width - 1) / (lanes * width);
      const std::int64_t blocks = groups.ids.dim(0) * chunks;
      backward<T, width><<<static_cast<unsigned>(blocks), dim3(lanes, slots), 0, stream_of(exec)>>>(
          pointer<float>(dtable), pointer<T>(dout), dout.ld(), pointer<std::int32_t>(groups.order),
          pointer<std::int32_t>(groups.starts), pointer<std::int32_t>(groups.ids), cols, chunks);
    });
  });
  check_launch("embedding_backward");
}

}  // namespace inlay::ops::cuda
