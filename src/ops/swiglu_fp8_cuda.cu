#include "backend/cuda/context_internal.h"
#include "ops/fp8_tile.cuh"
#include "ops/sigmoid.cuh"
#include "ops/swiglu.h"

// swiglu whose results are operands of products in fp8, written as codes and scales of both forms and in no other way.
// By blocks its inputs are read once; where a scale is of the whole tensor, twice: the first pass finds the largest
// magnitude.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

using T = __nv_bfloat16;

struct GateUp {
  const T* data;
  std::int64_t ld, rows, cols;  // cols: of gate alone

  __device__ __forceinline__ TilePlace place() const {
    const auto col_blocks = static_cast<unsigned>(cols / fp8_tile);
    return {.row_block = blockIdx.x / col_blocks, .col_block = blockIdx.x % col_blocks, .rows = rows, .cols = cols};
  }
};

__device__ __forceinline__ void load_part(TilePart<T>& part, const T* from, bool inside) {
  part.clear();
  if (inside) part.load(from);
}

// The largest magnitude of what a thread has seen, as it is rounded to bf16.
struct Largest {
  __nv_bfloat162 most = __floats2bfloat162_rn(0.0f, 0.0f);

  __device__ __forceinline__ void take(const TilePart<T>& part) {
#pragma unroll
    for (int word = 0; word < fp8_edge / 2; ++word) {
      most = __hmax2_nan(most, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&part.word[word])));
    }
  }
  // Of all threads of the block. They come here together.
  __device__ __forceinline__ float of_block(TileMemory& memory) const {
    float result = larger(__low2float(most), __high2float(most));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) result = larger(result, __shfl_xor_sync(~0u, result, step));
    if (threadIdx.x % 32 == 0) memory.warps[threadIdx.x / 32] = result;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < fp8_threads / 32; ++warp) result = larger(result, memory.warps[warp]);
    return result;
  }
};

enum class Pass : std::uint8_t { measure, write };

template <Pass pass>
__global__ void __launch_bounds__(fp8_threads, 2) forward(FormOut rows, FormOut columns, GateUp gate_up) {
  __shared__ TileMemory memory;
  const TilePlace at = gate_up.place();
  TilePart<T> act[fp8_edge], up[fp8_edge];
#pragma unroll
  for (int r = 0; r < fp8_edge; ++r) {
    const T* gate = gate_up.data + (at.row() + r) * gate_up.ld + at.col();
    load_part(act[r], gate, at.row() + r < at.rows);
    load_part(up[r], gate + gate_up.cols, at.row() + r < at.rows);
  }
#pragma unroll
  for (int r = 0; r < fp8_edge; ++r) {
    float g[fp8_edge], u[fp8_edge];
    act[r].get(g);
    up[r].get(u);
#pragma unroll
    for (int j = 0; j < fp8_edge; ++j) g[j] = g[j] * sigmoid<T>(g[j]) * u[j];
    act[r].set(g);
  }
  if constexpr (pass == Pass::measure) {
    Largest largest;
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) largest.take(act[r]);
    const float magnitude = largest.of_block(memory);
    raise_tensor(rows, magnitude);
    raise_tensor(columns, magnitude);
  } else {
    write_tile<T>(act, rows, columns, at, memory);
  }
}

struct BackwardOut {
  FormOut dgate_up_rows, dgate_up_columns, act_rows, act_columns;
};

// What a thread puts aside, row by row, until it is its turn.
struct Aside {
  uint4 rows[fp8_edge][fp8_threads];

  __device__ __forceinline__ void put(int r, const TilePart<T>& part) {
    rows[r][threadIdx.x] = make_uint4(part.word[0], part.word[1], part.word[2], part.word[3]);
  }
  __device__ __forceinline__ void take(TilePart<T> (&part)[fp8_edge]) const {
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      const uint4 x = rows[r][threadIdx.x];
      part[r].word[0] = x.x, part[r].word[1] = x.y, part[r].word[2] = x.z, part[r].word[3] = x.w;
    }
  }
};

// A row of a thread's share: gate becomes its gradient, up its own, dact the activation.
__device__ __forceinline__ void differentiate(TilePart<T>& gate, TilePart<T>& up, TilePart<T>& dact) {
  float g[fp8_edge], u[fp8_edge], da[fp8_edge];
  gate.get(g);
  up.get(u);
  dact.get(da);
#pragma unroll
  for (int j = 0; j < fp8_edge; ++j) {
    const float s = sigmoid<T>(g[j]);
    const float silu = g[j] * s;
    const float dg = da[j] * u[j] * (s + silu * (1.0f - s)), du = da[j] * silu;
    da[j] = silu * u[j];
    g[j] = dg;
    u[j] = du;
  }
  gate.set(g);
  up.set(u);
  dact.set(da);
}

// The largest magnitudes of what backward() writes.
__global__ void __launch_bounds__(fp8_threads, 2)
    measure_backward(BackwardOut to, const T* dact, std::int64_t dact_ld, GateUp gate_up) {
  __shared__ TileMemory memory;
  const TilePlace at = gate_up.place();
  Largest gradient, act;
#pragma unroll
  for (int quarter = 0; quarter < fp8_edge; quarter += 2) {
    TilePart<T> gate[2], up[2], d[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = at.row() + quarter + i;
      const T* from = gate_up.data + row * gate_up.ld + at.col();
      load_part(gate[i], from, row < at.rows);
      load_part(up[i], from + gate_up.cols, row < at.rows);
      load_part(d[i], dact + row * dact_ld + at.col(), row < at.rows);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      differentiate(gate[i], up[i], d[i]);
      gradient.take(gate[i]);
      gradient.take(up[i]);
      act.take(d[i]);
    }
  }
  const float of_gradient = gradient.of_block(memory);
  __syncthreads();  // before the same memory serves again
  const float of_act = act.of_block(memory);
  raise_tensor(to.dgate_up_rows, of_gradient);
  raise_tensor(to.dgate_up_columns, of_gradient);
  raise_tensor(to.act_rows, of_act);
  raise_tensor(to.act_columns, of_act);
}

// As swiglu_backward, tile by tile. Registers hold one of the three results at a time.
__global__ void __launch_bounds__(fp8_threads, 2)
    backward(BackwardOut to, const T* dact, std::int64_t dact_ld, GateUp gate_up) {
  __shared__ TileMemory memory;
  extern __shared__ uint4 dynamic[];
  Aside& up_aside = reinterpret_cast<Aside*>(dynamic)[0];
  Aside& act_aside = reinterpret_cast<Aside*>(dynamic)[1];
  const TilePlace at = gate_up.place();
  TilePart<T> part[fp8_edge];
#pragma unroll
  for (int half = 0; half < fp8_edge; half += fp8_edge / 2) {  // as many loads in flight as registers allow
    TilePart<T> up[fp8_edge / 2], d[fp8_edge / 2];
#pragma unroll
    for (int i = 0; i < fp8_edge / 2; ++i) {
      const std::int64_t row = at.row() + half + i;
      const T* from = gate_up.data + row * gate_up.ld + at.col();
      load_part(part[half + i], from, row < at.rows);
      load_part(up[i], from + gate_up.cols, row < at.rows);
      load_part(d[i], dact + row * dact_ld + at.col(), row < at.rows);
    }
#pragma unroll
    for (int i = 0; i < fp8_edge / 2; ++i) {
      differentiate(part[half + i], up[i], d[i]);
      up_aside.put(half + i, up[i]);
      act_aside.put(half + i, d[i]);
    }
  }
  // In the gradient the tile of up lies behind all of gate's.
  TilePlace place = at;
  place.cols = 2 * gate_up.cols;
  write_tile<T>(part, to.dgate_up_rows, to.dgate_up_columns, place, memory);
  __syncthreads();
  place.col_block += gate_up.cols / fp8_tile;
  up_aside.take(part);
  write_tile<T>(part, to.dgate_up_rows, to.dgate_up_columns, place, memory);
  __syncthreads();
  act_aside.take(part);
  write_tile<T>(part, to.act_rows, to.act_columns, at, memory);
}

GateUp as_gate_up(ConstView view) {
  INLAY_ASSERT(vectors_fit(fp8_edge, view), "swiglu in fp8: rows that are not aligned to 16 bytes");
  return {pointer<T>(view), view.ld(), view.dim(0), view.dim(1) / 2};
}

unsigned tiles_of(ConstView gate_up) {
  const std::int64_t row_blocks = (gate_up.dim(0) + fp8_tile - 1) / fp8_tile;
  return static_cast<unsigned>(row_blocks * (gate_up.dim(1) / 2 / fp8_tile));
}

}  // namespace

void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up) {
  const FormOut rows = form_out(act.rows), columns = form_out(act.columns);
  const GateUp from = as_gate_up(gate_up);
  const unsigned tiles = tiles_of(gate_up);
  const cudaStream_t stream = stream_of(exec);
  if (clear_largest(exec, act)) forward<Pass::measure><<<tiles, fp8_threads, 0, stream>>>(rows, columns, from);
  forward<Pass::write><<<tiles, fp8_threads, 0, stream>>>(rows, columns, from);
  check_launch("swiglu_forward_fp8");
  largest_to_scales(exec, act);
}

void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up) {
  constexpr int aside = 2 * sizeof(Aside);
  check(cudaFuncSetAttribute(backward, cudaFuncAttributeMaxDynamicSharedMemorySize, aside), "swiglu_backward_fp8");
  const BackwardOut to{form_out(dgate_up.rows), form_out(dgate_up.columns), form_out(act.rows), form_out(act.columns)};
  const GateUp from = as_gate_up(gate_up);
  const unsigned tiles = tiles_of(gate_up);
  const cudaStream_t stream = stream_of(exec);
  const bool of_gradient = clear_largest(exec, dgate_up), of_act = clear_largest(exec, act);
  if (of_gradient || of_act) measure_backward<<<tiles, fp8_threads, 0, stream>>>(to, pointer<T>(dact), dact.ld(), from);
  backward<<<tiles, fp8_threads, aside, stream>>>(to, pointer<T>(dact), dact.ld(), from);
  check_launch("swiglu_backward_fp8");
  largest_to_scales(exec, dgate_up);
  largest_to_scales(exec, act);
}

}  // namespace inlay::ops::cuda
