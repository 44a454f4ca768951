#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/logit_vector.cuh"
#include "ops/loss_rows.h"

namespace inlay::ops::cuda {

using backend::cuda::check_launch;
using backend::cuda::pointer;
using backend::cuda::stream_of;

namespace {

constexpr int sum_threads = 1024;

// The batch's labels and weights, by row.
struct Labels {
  const std::int32_t *positions, *targets;
  const float *class_weights, *token_weights;
  std::int64_t count;
  int columns;

  explicit Labels(const LossCall& call)
      : positions(pointer<std::int32_t>(call.inputs.rows)),
        targets(pointer<std::int32_t>(call.inputs.targets)),
        class_weights(pointer<float>(call.inputs.class_weights)),
        token_weights(pointer<float>(call.inputs.token_weights)),
        count(call.count),
        columns(static_cast<int>(call.columns)) {}

  __device__ std::int64_t position(std::int64_t row) const { return positions == nullptr ? row : positions[row]; }
  __device__ float token_weight(std::int64_t at) const { return token_weights == nullptr ? 1.0f : token_weights[at]; }
  __device__ float class_weight(std::int64_t at) const {
    return class_weights == nullptr ? 1.0f : class_weights[targets[at]];
  }
};

// The sum over a block of 1024 threads, in a fixed tree; known to thread 0.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T warps[sum_threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

__global__ void __launch_bounds__(sum_threads)
    scales_kernel(LossScales* scales, Labels labels, Divisors divisors, const float* upstream, bool sum_classes,
                  float z_loss, float gain) {
  if (divisors.sum_weights || divisors.sum_counts) {
    double weights = 0, counts = 0;
    for (std::int64_t row = threadIdx.x; row < labels.count; row += sum_threads) {
      const std::int64_t at = labels.position(row);
      const double weight = labels.token_weight(at);
      weights += weight * static_cast<double>(labels.class_weight(at));
      counts += weight;
    }
    weights = block_sum(weights);
    counts = block_sum(counts);
    if (divisors.sum_weights) divisors.weight_sum = weights;
    if (divisors.sum_counts) divisors.count_sum = counts;
  }
  double class_sum = labels.columns;
  if (sum_classes) {
    class_sum = 0;
    for (int v = threadIdx.x; v < labels.columns; v += sum_threads) class_sum += labels.class_weights[v];
    class_sum = block_sum(class_sum);
  }
  if (threadIdx.x != 0) return;
  *scales = make_scales(divisors.weight_sum, divisors.count_sum, z_loss, upstream == nullptr ? 1.0f : *upstream, gain,
                        static_cast<float>(class_sum));
}

struct Finish {
  const LossScales* scales;
  const float *max, *log_sum, *target, *spread;
  const std::int32_t* argmax;
  const float *divergence, *given_weights;
  float smoothing;
  DivergenceSpec spec;
  float *loss, *z_loss, *divergence_loss;
  std::int32_t *correct, *predicted;
};

__device__ RowLoss row_parts(const Finish& finish, const Labels& labels, std::int64_t row, std::int64_t at) {
  const LossScales scales = *finish.scales;
  const float max = finish.max[row], log_sum = finish.log_sum[row];
  const float weight = labels.token_weight(at), lse = max + log_sum;
  const float ce =
      row_loss(labels.class_weight(at), scales.class_sum, finish.smoothing, static_cast<float>(labels.columns),
               log_sum + (max - finish.target[row]), finish.spread == nullptr ? 0.0f : finish.spread[row]);
  return joined_loss(scales, finish.spec, weight, finish.given_weights == nullptr ? 1.0f : finish.given_weights[at], ce,
                     lse, finish.divergence == nullptr ? 0.0f : finish.divergence[row]);
}

// Scalars +=, by one block in a fixed order.
__global__ void __launch_bounds__(sum_threads) sum_rows(Finish finish, Labels labels, bool per_position) {
  double loss = 0, z_loss = 0, divergence = 0;
  int correct = 0;
  for (std::int64_t row = threadIdx.x; row < labels.count; row += sum_threads) {
    const std::int64_t at = labels.position(row);
    const RowLoss parts = row_parts(finish, labels, row, at);
    loss += parts.whole;
    z_loss += parts.z_part;
    divergence += parts.divergence_part;
    if (finish.argmax != nullptr) correct += finish.argmax[row] == labels.targets[at] ? 1 : 0;
  }
  loss = block_sum(loss);
  z_loss = block_sum(z_loss);
  divergence = block_sum(divergence);
  correct = block_sum(correct);
  if (threadIdx.x != 0) return;
  if (!per_position && finish.loss != nullptr) *finish.loss += static_cast<float>(loss);
  if (!per_position && finish.z_loss != nullptr) *finish.z_loss += static_cast<float>(z_loss);
  if (finish.divergence_loss != nullptr) *finish.divergence_loss += static_cast<float>(divergence);
  if (finish.correct != nullptr) *finish.correct += correct;
}

// Values of positions that no row names. Losses are given only where they are wanted per position.
__global__ void clear_positions(float* loss, float* z_loss, std::int32_t* predicted, std::int64_t tokens) {
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= tokens) return;
  if (loss != nullptr) loss[at] = 0.0f;
  if (z_loss != nullptr) z_loss[at] = 0.0f;
  if (predicted != nullptr) predicted[at] = -1;
}

__global__ void write_positions(Finish finish, Labels labels, bool per_position) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= labels.count) return;
  const std::int64_t at = labels.position(row);
  if (per_position) {
    const RowLoss parts = row_parts(finish, labels, row, at);
    if (finish.loss != nullptr) finish.loss[at] = parts.whole;
    if (finish.z_loss != nullptr) finish.z_loss[at] = parts.z_part;
  }
  if (finish.predicted != nullptr) finish.predicted[at] = finish.argmax[row];
}

unsigned blocks_for(std::int64_t count, std::int64_t threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

// Rows are copied in units as wide as every address and length involved allows.
template <class Unit>
struct ByteRows {
  Unit* data;
  std::int64_t ld;
};
bool aligned(const ConstView& view, std::int64_t unit) {
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype()));
  return view.absent() || (reinterpret_cast<std::uintptr_t>(view.data()) % static_cast<std::uintptr_t>(unit) == 0 &&
                           view.ld() * bytes % unit == 0 && view.dim(1) * bytes % unit == 0);
}
template <class Unit, class AnyView>
ByteRows<Unit> rows_in(const AnyView& view) {
  if (view.absent()) return {nullptr, 0};
  return {reinterpret_cast<Unit*>(view.data()),
          view.ld() * static_cast<std::int64_t>(size_of(view.dtype())) / static_cast<std::int64_t>(sizeof(Unit))};
}

template <class Unit>
__global__ void gather_kernel(ByteRows<Unit> to, ByteRows<const Unit> from, const std::int32_t* positions, int units) {
  const std::int64_t row = blockIdx.x;
  const Unit* source = from.data + positions[row] * from.ld;
  for (int i = threadIdx.x; i < units; i += blockDim.x) to.data[row * to.ld + i] = source[i];
}

// By position: it lies behind this piece, before it, or is found among its rows, or is cleared.
template <class Unit>
__global__ void scatter_kernel(ByteRows<Unit> to, ByteRows<const Unit> from, const std::int32_t* positions, int begin,
                               int end, int count, int units) {
  const int at = static_cast<int>(blockIdx.x);
  if (begin > 0 && at <= positions[begin - 1]) return;
  if (end < count && at > positions[end - 1]) return;
  int low = begin, high = end;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (positions[middle] < at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool found = low < end && positions[low] == at;
  for (int i = threadIdx.x; i < units; i += blockDim.x) {
    to.data[at * to.ld + i] = found ? from.data[(low - begin) * from.ld + i] : Unit{};
  }
}

// One block sums 32 vectors of columns: warp w takes the rows w, w + 16, ..., and the warps' sums are added in order.
constexpr int column_warps = 16;
template <class T>
__global__ void __launch_bounds__(column_warps * 32)
    column_sums_kernel(float* sums, bool add, const T* dz, std::int64_t ld, std::int64_t rows, int columns,
                       const float* alpha) {
  constexpr int width = logits_a_vector<T>;
  __shared__ float partial[column_warps][32 * width];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = (static_cast<int>(blockIdx.x) * 32 + lane) * width;
  float total[width] = {};
  if (column < columns) {  // rows are padded to whole vectors
    for (std::int64_t row = warp; row < rows; row += column_warps) {
      float values[width];
      unpack<T>(values, *reinterpret_cast<const uint4*>(dz + row * ld + column));
#pragma unroll
      for (int i = 0; i < width; ++i) total[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < width; ++i) partial[warp][lane * width + i] = total[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * width; i += blockDim.x) {
    const int to = static_cast<int>(blockIdx.x) * 32 * width + i;
    if (to >= columns) continue;
    float sum = 0;
    for (int w = 0; w < column_warps; ++w) sum += partial[w][i];
    sums[to] = *alpha * sum + (add ? sums[to] : 0.0f);
  }
}

// One block a row.
__global__ void spread_kernel(float* logits, std::int64_t ld, int columns, const std::int32_t* ids,
                              const float* log_probs, std::int64_t ids_ld, std::int64_t log_probs_ld, int kept,
                              const std::int32_t* positions, std::int64_t first) {
  float* to = logits + blockIdx.x * ld;
  for (int v = threadIdx.x; v < columns; v += blockDim.x) to[v] = -INFINITY;
  __syncthreads();
  const std::int64_t at = positions == nullptr ? first + blockIdx.x : positions[blockIdx.x];
  for (int i = threadIdx.x; i < kept; i += blockDim.x) {
    const std::int32_t id = ids[at * ids_ld + i];
    if (id >= 0) to[id] = log_probs[at * log_probs_ld + i];
  }
}

template <class T>
void start_column_sums(Exec& exec, View sums, bool add, ConstView dz, const float* alpha) {
  const std::int64_t columns = dz.dim(1);
  column_sums_kernel<T><<<blocks_for(columns, 32 * logits_a_vector<T>), column_warps * 32, 0, stream_of(exec)>>>(
      sums.as<float>(), add, static_cast<const T*>(dz.data()), dz.ld(), dz.dim(0), static_cast<int>(columns), alpha);
  check_launch("column_sums");
}

// Calls body with the widest unit that fits, and the number of them in a row.
template <class Body>
void with_unit(const ConstView& shaped, const ConstView& other, const Body& body) {
  const std::int64_t bytes = shaped.dim(1) * static_cast<std::int64_t>(size_of(shaped.dtype()));
  if (aligned(shaped, 16) && aligned(other, 16)) return body(uint4{}, static_cast<int>(bytes / 16));
  if (size_of(shaped.dtype()) == 4) return body(std::uint32_t{}, static_cast<int>(bytes / 4));
  body(std::uint16_t{}, static_cast<int>(bytes / 2));
}

}  // namespace

void loss_scales(Exec& exec, const LossCall& call, float gain) {
  const bool scalar_upstream = call.options.reduction != Reduction::none;
  scales_kernel<<<1, sum_threads, 0, stream_of(exec)>>>(
      static_cast<LossScales*>(call.scales.data()), Labels(call), divisors_of(call),
      scalar_upstream ? pointer<float>(call.inputs.upstream) : nullptr,
      !call.inputs.class_weights.absent() && call.options.label_smoothing > 0, call.options.z_loss, gain);
  check_launch("loss_scales");
}

void finish_loss(Exec& exec, const LossCall& call) {
  const bool per_position = call.options.reduction == Reduction::none;
  const RowStatistics& statistics = call.statistics;
  const LossOutputs& outputs = call.outputs;
  const Finish finish{.scales = static_cast<const LossScales*>(call.scales.data()),
                      .max = pointer<float>(statistics.max),
                      .log_sum = pointer<float>(statistics.log_sum),
                      .target = pointer<float>(statistics.target),
                      .spread = pointer<float>(statistics.spread),
                      .argmax = pointer<std::int32_t>(statistics.argmax),
                      .divergence = pointer<float>(call.divergence),
                      .given_weights = pointer<float>(call.given_weights),
                      .smoothing = call.options.label_smoothing,
                      .spec = call.options.divergence,
                      .loss = pointer<float>(outputs.loss),
                      .z_loss = pointer<float>(outputs.z_loss),
                      .divergence_loss = pointer<float>(outputs.divergence),
                      .correct = pointer<std::int32_t>(outputs.correct),
                      .predicted = pointer<std::int32_t>(outputs.predicted)};
  const Labels labels(call);
  if (call.tokens > 0 && (per_position || finish.predicted != nullptr)) {
    clear_positions<<<blocks_for(call.tokens, 256), 256, 0, stream_of(exec)>>>(
        per_position ? finish.loss : nullptr, per_position ? finish.z_loss : nullptr, finish.predicted, call.tokens);
    check_launch("finish_loss");
  }
  if (call.count == 0) return;
  if (per_position || finish.predicted != nullptr) {
    write_positions<<<blocks_for(call.count, 256), 256, 0, stream_of(exec)>>>(finish, labels, per_position);
    check_launch("finish_loss");
  }
  if (!per_position || finish.correct != nullptr) {
    sum_rows<<<1, sum_threads, 0, stream_of(exec)>>>(finish, labels, per_position);
    check_launch("finish_loss");
  }
}

void gather_piece(Exec& exec, View to, ConstView from, ConstView positions) {
  with_unit(to, from, [&](auto unit, int units) {
    using Unit = decltype(unit);
    gather_kernel<Unit><<<static_cast<unsigned>(to.dim(0)), 128, 0, stream_of(exec)>>>(
        rows_in<Unit>(to), rows_in<const Unit>(from), pointer<std::int32_t>(positions), units);
  });
  check_launch("gather_piece");
}

void scatter_piece(Exec& exec, View to, ConstView from, ConstView positions, std::int64_t begin, std::int64_t end) {
  const int count = positions.absent() ? 0 : static_cast<int>(positions.dim(0));
  with_unit(to, from, [&](auto unit, int units) {
    using Unit = decltype(unit);
    scatter_kernel<Unit><<<static_cast<unsigned>(to.dim(0)), 128, 0, stream_of(exec)>>>(
        rows_in<Unit>(to), rows_in<const Unit>(from), pointer<std::int32_t>(positions), static_cast<int>(begin),
        static_cast<int>(end), count, units);
  });
  check_launch("scatter_piece");
}

void column_sums(Exec& exec, View sums, Grad mode, ConstView dz, const float* alpha) {
  const bool add = mode == Grad::accumulate;
  switch (dz.dtype()) {
    case DType::f32: return start_column_sums<float>(exec, sums, add, dz, alpha);
    case DType::bf16: return start_column_sums<__nv_bfloat16>(exec, sums, add, dz, alpha);
    case DType::f16: return start_column_sums<__half>(exec, sums, add, dz, alpha);
    default: INLAY_ASSERT(false, "column_sums of {}", name_of(dz.dtype()));
  }
}

void spread_kept(Exec& exec, View logits, const OtherModel& other, ConstView positions, std::int64_t first) {
  spread_kernel<<<static_cast<unsigned>(logits.dim(0)), 256, 0, stream_of(exec)>>>(
      logits.as<float>(), logits.ld(), static_cast<int>(logits.dim(1)), pointer<std::int32_t>(other.ids),
      pointer<float>(other.log_probs), other.ids.ld(), other.log_probs.ld(), static_cast<int>(other.ids.dim(1)),
      pointer<std::int32_t>(positions), first);
  check_launch("spread_kept");
}

}  // namespace inlay::ops::cuda
