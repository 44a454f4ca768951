#include "ops/expert_glu.cuh"
#include "ops/fp8_tile.cuh"

// The experts' activation where its results are operands of products in fp8 by blocks, written as codes and scales and
// in no other way. A block of threads has 128 rows of 128 activations, and so 256 columns of gate and up: two tiles of
// the gradient, whichever way these lie.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

using T = __nv_bfloat16;

constexpr int half_rows = fp8_tile / 2;  // what one partial sum of the bias's gradient is over
static_assert(half_rows == expert_glu_slice);

struct Input {
  const T *gate_up, *dact;                       // dact: null in the forward pass
  std::int64_t gate_up_ld, dact_ld, rows, cols;  // cols: of the activation
  Biases<T> biases;
  unsigned col_blocks;

  __device__ __forceinline__ TilePlace place() const {
    return {.row_block = blockIdx.x / col_blocks, .col_block = blockIdx.x % col_blocks, .rows = rows, .cols = cols};
  }
};

// What the rows of a tile are.
struct RowFacts {
  int expert[fp8_tile];  // where it is asked for
  float weight[fp8_tile];

  __device__ __forceinline__ void load(const Input& in, const TilePlace& at, const float* weights, bool experts) {
    const int i = static_cast<int>(threadIdx.x);
    const std::int64_t row = at.row_block * fp8_tile + i;
    if (i < fp8_tile) {
      const int pair = row < at.rows ? in.biases.pairs[row] : 0;
      expert[i] = experts && row < at.rows ? in.biases.experts[pair] : 0;
      weight[i] = weights != nullptr && row < at.rows ? weights[pair] : 0.0f;
    }
    __syncthreads();
  }
};

// Eight gates and the eight ups that go with them, as they lie: side by side, or alternating.
template <Glu kind>
struct Pairs {
  TilePart<T> first, second;

  __device__ __forceinline__ void load(const T* row, std::int64_t width, std::int64_t col) {
    first.load(row + (kind == Glu::silu ? col : 2 * col));
    second.load(row + (kind == Glu::silu ? width + col : 2 * col + fp8_edge));
  }
  __device__ __forceinline__ void clear() {
    first.clear();
    second.clear();
  }
  __device__ __forceinline__ void get(float (&gate)[fp8_edge], float (&up)[fp8_edge]) const {
    if constexpr (kind == Glu::silu) {
      first.get(gate);
      second.get(up);
    } else {
      float low[fp8_edge], high[fp8_edge];
      first.get(low);
      second.get(high);
#pragma unroll
      for (int i = 0; i < fp8_edge / 2; ++i) {
        gate[i] = low[2 * i], up[i] = low[2 * i + 1];
        gate[i + fp8_edge / 2] = high[2 * i], up[i + fp8_edge / 2] = high[2 * i + 1];
      }
    }
  }
  __device__ __forceinline__ void set(const float (&gate)[fp8_edge], const float (&up)[fp8_edge]) {
    if constexpr (kind == Glu::silu) {
      first.set(gate);
      second.set(up);
    } else {
      float low[fp8_edge], high[fp8_edge];
#pragma unroll
      for (int i = 0; i < fp8_edge / 2; ++i) {
        low[2 * i] = gate[i], low[2 * i + 1] = up[i];
        high[2 * i] = gate[i + fp8_edge / 2], high[2 * i + 1] = up[i + fp8_edge / 2];
      }
      first.set(low);
      second.set(high);
    }
  }
  // gate and up with the biases of the row's expert.
  __device__ __forceinline__ void get_biased(float (&gate)[fp8_edge], float (&up)[fp8_edge], const Input& in,
                                             int expert, std::int64_t col) const {
    get(gate, up);
    if (in.biases.data == nullptr) return;
    Pairs bias;
    bias.load(in.biases.data + expert * in.biases.ld, in.cols, col);
    float g[fp8_edge], u[fp8_edge];
    bias.get(g, u);
#pragma unroll
    for (int i = 0; i < fp8_edge; ++i) gate[i] += g[i], up[i] += u[i];
  }
};

template <Glu kind>
__global__ void __launch_bounds__(fp8_threads, 2) forward(FormOut rows, FormOut columns, Input in) {
  __shared__ TileMemory memory;
  __shared__ RowFacts facts;
  const TilePlace at = in.place();
  facts.load(in, at, nullptr, in.biases.data != nullptr);
  TilePart<T> act[fp8_edge];
#pragma unroll
  for (int half = 0; half < fp8_edge; half += fp8_edge / 2) {  // as many loads in flight as registers allow
    Pairs<kind> pairs[fp8_edge / 2];
#pragma unroll
    for (int i = 0; i < fp8_edge / 2; ++i) {
      const std::int64_t row = at.row() + half + i;
      pairs[i].clear();
      if (row < at.rows && at.col() < at.cols) pairs[i].load(in.gate_up + row * in.gate_up_ld, in.cols, at.col());
    }
#pragma unroll
    for (int i = 0; i < fp8_edge / 2; ++i) {
      act[half + i].clear();
      if (at.row() + half + i >= at.rows || at.col() >= at.cols) continue;
      float gate[fp8_edge], up[fp8_edge];
      pairs[i].get_biased(gate, up, in, facts.expert[at.down() * fp8_edge + half + i], at.col());
#pragma unroll
      for (int j = 0; j < fp8_edge; ++j) gate[j] = activate<T, kind>(gate[j], up[j]).value;
      act[half + i].set(gate);
    }
  }
  write_tile<T>(act, rows, columns, at, memory);
}

// The gradients of a block's 256 columns, in eights as they lie in a row of the tiles: written by the threads that find
// them, read by tile.
struct Gradients {
  static constexpr int eights = 2 * fp8_across;
  uint4 at[fp8_edge][fp8_across][eights];  // row within a thread's eight, thread down, eight of columns

  __device__ __forceinline__ void put(int r, int down, int eight, const TilePart<T>& part) {
    at[r][down][eight] = make_uint4(part.word[0], part.word[1], part.word[2], part.word[3]);
  }
  __device__ __forceinline__ void take(TilePart<T> (&part)[fp8_edge], const TilePlace& place, int tile) const {
#pragma unroll
    for (int r = 0; r < fp8_edge; ++r) {
      const uint4 x = at[r][place.down()][tile * fp8_across + place.across()];
      part[r].word[0] = x.x, part[r].word[1] = x.y, part[r].word[2] = x.z, part[r].word[3] = x.w;
    }
  }
  // Two neighbouring columns of a row.
  __device__ __forceinline__ float2 pair(int row, int columns) const {
    const auto* words = reinterpret_cast<const __nv_bfloat162*>(&at[row % fp8_edge][row / fp8_edge][columns / 4]);
    return __bfloat1622float2(words[columns % 4]);
  }
};

struct BackwardOut {
  FormOut dgate_up_rows, dgate_up_columns, act_rows, act_columns;
  float* dweights;  // [column blocks, rows]: what a block's activations add
  float* dbias;     // null where there is no bias; of half h of the rows, and expert e there: row h + e
  const float* weights;
  const std::int32_t* offsets;
};

// Where the columns of a block's tile of the gradient begin.
template <Glu kind>
__device__ __forceinline__ std::int64_t tile_block(const TilePlace& at, std::int64_t cols, int tile) {
  return kind == Glu::silu ? at.col_block + tile * (cols / fp8_tile) : 2 * at.col_block + tile;
}

// Sums over the rows of each expert, of half of the tile's rows and two columns a thread.
template <Glu kind>
__device__ __forceinline__ void sum_rows(const BackwardOut& to, const Gradients& gradients, const RowFacts& facts,
                                         const TilePlace& at) {
  const int columns = static_cast<int>(threadIdx.x) % fp8_tile, half = static_cast<int>(threadIdx.x) / fp8_tile;
  const int tile = columns / half_rows;
  const std::int64_t col = tile_block<kind>(at, at.cols, tile) * fp8_tile + columns % half_rows * 2;
  if (col >= 2 * at.cols) return;
  const std::int64_t first = at.row_block * fp8_tile;
  int row = half * half_rows;
  const int end = static_cast<int>(min(static_cast<std::int64_t>(row + half_rows), at.rows - first));
  while (row < end) {
    const int expert = facts.expert[row];
    const int last = static_cast<int>(min(static_cast<std::int64_t>(end), to.offsets[expert + 1] - first));
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (; row < last; ++row) {
      const float2 x = gradients.pair(row, columns);
      sum.x += x.x;
      sum.y += x.y;
    }
    const std::int64_t slice = 2 * at.row_block + half + expert;
    *reinterpret_cast<float2*>(to.dbias + slice * 2 * at.cols + col) = sum;
  }
}

template <Glu kind>
__global__ void __launch_bounds__(fp8_threads, 2) backward(BackwardOut to, Input in) {
  __shared__ TileMemory memory;
  __shared__ RowFacts facts;
  extern __shared__ uint4 dynamic[];
  Gradients& gradients = *reinterpret_cast<Gradients*>(dynamic);
  const TilePlace at = in.place();
  facts.load(in, at, to.weights, in.biases.data != nullptr || to.dbias != nullptr);
  const int across = at.across(), down = at.down();
  TilePart<T> act[fp8_edge];
#pragma unroll
  for (int quarter = 0; quarter < fp8_edge; quarter += 2) {
    Pairs<kind> pairs[2];
    TilePart<T> dact[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = at.row() + quarter + i;
      pairs[i].clear();
      dact[i].clear();
      if (row >= at.rows || at.col() >= at.cols) continue;
      pairs[i].load(in.gate_up + row * in.gate_up_ld, in.cols, at.col());
      dact[i].load(in.dact + row * in.dact_ld + at.col());
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = quarter + i, row = down * fp8_edge + r;
      float sum = 0.0f;
      act[r].clear();
      if (at.row() + r < at.rows && at.col() < at.cols) {
        float gate[fp8_edge], up[fp8_edge], d[fp8_edge];
        pairs[i].get_biased(gate, up, in, facts.expert[row], at.col());
        dact[i].get(d);
        const float weight = facts.weight[row];
#pragma unroll
        for (int j = 0; j < fp8_edge; ++j) {
          const Activation x = activate<T, kind>(gate[j], up[j]);
          sum += x.value * d[j];
          const float upstream = weight * d[j];
          d[j] = weight * x.value;
          gate[j] = upstream * x.by_gate;
          up[j] = upstream * x.by_up;
        }
        act[r].set(d);
        pairs[i].set(gate, up);
      }
      gradients.put(r, down, kind == Glu::silu ? across : 2 * across, pairs[i].first);
      gradients.put(r, down, kind == Glu::silu ? fp8_across + across : 2 * across + 1, pairs[i].second);
#pragma unroll
      for (int step = 1; step < fp8_across; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (across == 0 && at.row() + r < at.rows) to.dweights[at.col_block * at.rows + at.row() + r] = sum;
    }
  }
  if (to.act_rows.codes != nullptr || to.act_columns.codes != nullptr) {
    write_tile<T>(act, to.act_rows, to.act_columns, at, memory);
  }
  __syncthreads();
  if (to.dbias != nullptr) sum_rows<kind>(to, gradients, facts, at);
#pragma unroll 1
  for (int tile = 0; tile < 2; ++tile) {
    TilePlace place = at;
    place.cols = 2 * at.cols;
    place.col_block = tile_block<kind>(at, at.cols, tile);
    if (place.col_block * fp8_tile >= place.cols) break;  // the last activations may fill one tile alone
    gradients.take(act, place, tile);
    write_tile<T>(act, to.dgate_up_rows, to.dgate_up_columns, place, memory);
    __syncthreads();
  }
}

// dweights[pair of the row] += what the blocks of columns add, in their order.
__global__ void __launch_bounds__(256)
    add_weights(float* dweights, const float* partials, const std::int32_t* pairs, std::int64_t rows, int blocks) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int block = 0; block < blocks; ++block) sum += partials[block * rows + row];
  dweights[pairs[row]] += sum;
}

// dbias[e] = or += the sums over its rows in all halves of tiles that have some.
__global__ void __launch_bounds__(128)
    add_slices(float* dbias, std::int64_t ld, const float* partials, const std::int32_t* offsets, int cols, bool add) {
  const int col = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), expert = static_cast<int>(blockIdx.y);
  if (col >= cols) return;
  const int begin = offsets[expert], end = offsets[expert + 1];
  float sum = 0.0f;
  if (begin < end) {
#pragma unroll 4
    for (int half = begin / half_rows; half <= (end - 1) / half_rows; ++half) {
      sum += partials[std::int64_t{half + expert} * cols + col];
    }
  }
  float* to = dbias + expert * ld + col;
  *to = add ? *to + sum : sum;
}

Input input_of(ConstView gate_up, ConstView dact, const ExpertRows& rows) {
  INLAY_ASSERT(vectors_fit(fp8_edge, gate_up) && (dact.absent() || vectors_fit(fp8_edge, dact)) &&
                   (rows.bias.absent() || vectors_fit(fp8_edge, rows.bias)),
               "expert_glu in fp8: rows that are not aligned to 16 bytes");
  const std::int64_t cols = gate_up.dim(1) / 2;
  return {.gate_up = pointer<T>(gate_up),
          .dact = pointer<T>(dact),
          .gate_up_ld = gate_up.ld(),
          .dact_ld = dact ? dact.ld() : 0,
          .rows = gate_up.dim(0),
          .cols = cols,
          .biases = biases_of<T>(rows),
          .col_blocks = static_cast<unsigned>((cols + fp8_tile - 1) / fp8_tile)};
}

unsigned tiles_of(const Input& in) {
  return static_cast<unsigned>((in.rows + fp8_tile - 1) / fp8_tile) * in.col_blocks;
}

}  // namespace

void expert_glu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, const ExpertRows& rows) {
  const Input in = input_of(gate_up, {}, rows);
  const FormOut by_rows = form_out(act.rows), by_columns = form_out(act.columns);
  const auto kernel = rows.kind == Glu::silu ? forward<Glu::silu> : forward<Glu::clamped>;
  kernel<<<tiles_of(in), fp8_threads, 0, stream_of(exec)>>>(by_rows, by_columns, in);
  check_launch("expert_glu_forward_fp8");
}

void expert_glu_backward_fp8(Exec& exec, const ExpertGluForms& forms, View dweights, ConstView dact, ConstView gate_up,
                             ConstView weights, const ExpertRows& rows, const ExpertGluScratch& scratch) {
  const Input in = input_of(gate_up, dact, rows);
  const BackwardOut to{.dgate_up_rows = form_out(forms.dgate_up.rows),
                       .dgate_up_columns = form_out(forms.dgate_up.columns),
                       .act_rows = form_out(forms.act.rows),
                       .act_columns = form_out(forms.act.columns),
                       .dweights = pointer<float>(scratch.dweights),
                       .dbias = pointer<float>(scratch.dbias),
                       .weights = pointer<float>(weights),
                       .offsets = pointer<std::int32_t>(rows.order.offsets)};
  const auto kernel = rows.kind == Glu::silu ? backward<Glu::silu> : backward<Glu::clamped>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gradients)),
        "expert_glu_backward_fp8");
  const cudaStream_t stream = stream_of(exec);
  kernel<<<tiles_of(in), fp8_threads, sizeof(Gradients), stream>>>(to, in);
  add_weights<<<static_cast<unsigned>((in.rows + 255) / 256), 256, 0, stream>>>(
      pointer<float>(dweights), to.dweights, in.biases.pairs, in.rows, static_cast<int>(in.col_blocks));
  if (to.dbias != nullptr) {
    const auto cols = static_cast<int>(2 * in.cols);
    const dim3 blocks(static_cast<unsigned>((cols + 127) / 128), static_cast<unsigned>(forms.dbias.dim(0)));
    add_slices<<<blocks, 128, 0, stream>>>(pointer<float>(forms.dbias), forms.dbias.ld(), to.dbias, to.offsets, cols,
                                           forms.dbias_mode == Grad::accumulate);
  }
  check_launch("expert_glu_backward_fp8");
}

}  // namespace inlay::ops::cuda
