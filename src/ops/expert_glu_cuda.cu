#include <tuple>

#include "backend/cuda/reduce.cuh"
#include "ops/expert_glu.cuh"

// Where tensors share memory, every element is read by the thread that writes it, before it does; so no pointer here is
// __restrict__.
namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

constexpr int row_threads = 128, at_once = 3;

// A block for every row. A thread asks for all of its vectors before it works on the first.
template <class T, Glu kind, int V>
__global__ void __launch_bounds__(row_threads)
    forward(T* act, std::int64_t act_ld, const T* gate_up, std::int64_t gate_up_ld, Biases<T> all_biases, int width) {
  const std::int64_t row = blockIdx.x;
  const T* from = gate_up + row * gate_up_ld;
  const T* biases = all_biases.of_row(row);
  for (int begin = static_cast<int>(threadIdx.x) * V; begin < width; begin += at_once * row_threads * V) {
    float gate[at_once][V], up[at_once][V];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int col = begin + j * row_threads * V;
      if (col < width) load_pairs<kind>(gate[j], up[j], from, width, col);
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int col = begin + j * row_threads * V;
      if (col >= width) break;
      add_biases<kind>(gate[j], up[j], biases, width, col);
      float a[V];
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = activate<T, kind>(gate[j][i], up[j][i]).value;
      store(act + row * act_ld + col, a);
    }
  }
}

template <class T>
struct BackwardTask {
  T *dgate_up, *act;
  const T *dact, *gate_up;
  std::int64_t dgate_up_ld, act_ld, dact_ld, gate_up_ld;
  float* dweights;
  const float* weights;
  Biases<T> biases;
  int width;
};

// A block for every row, which so sums its part of the weight's gradient.
template <class T, Glu kind, int V>
__global__ void __launch_bounds__(row_threads) backward(BackwardTask<T> task) {
  __shared__ float partials[32];
  const std::int64_t row = blockIdx.x;
  const int pair = task.biases.pairs[row];
  const float weight = task.weights[pair];
  const T* biases = task.biases.of_row(row);
  float sum = 0.0f;
  for (int col = static_cast<int>(threadIdx.x) * V; col < task.width; col += row_threads * V) {
    float gate[V], up[V], d[V], a[V];
    load_pairs<kind>(gate, up, task.gate_up + row * task.gate_up_ld, task.width, col);
    load(d, task.dact + row * task.dact_ld + col);
    add_biases<kind>(gate, up, biases, task.width, col);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Activation x = activate<T, kind>(gate[i], up[i]);
      sum += x.value * d[i];
      const float upstream = weight * d[i];
      a[i] = weight * x.value;
      gate[i] = upstream * x.by_gate;
      up[i] = upstream * x.by_up;
    }
    store_pairs<kind>(task.dgate_up + row * task.dgate_up_ld, task.width, col, gate, up);
    store(task.act + row * task.act_ld + col, a);
  }
  sum = block_sum(sum, partials);
  if (threadIdx.x == 0) task.dweights[pair] += sum;
}

// Calls body with the storage type, the kind and the vector's width as constants. Halves begin at width, which must
// then be whole vectors: it is where the activation's rows are.
template <class Body, class... Views>
void with_kind(const ExpertRows& rows, const Body& body, const Views&... views) {
  const DType dtype = std::get<0>(std::tie(views...)).dtype();
  with_activation_type(dtype, [&](auto type) {
    using T = decltype(type);
    const bool vectors =
        vectors_fit(full_vector<T>, views...) && (rows.bias.absent() || vectors_fit(full_vector<T>, rows.bias));
    with_width<T>(vectors, [&](auto width) {
      if (rows.kind == Glu::silu) return body(type, std::integral_constant<Glu, Glu::silu>{}, width);
      body(type, std::integral_constant<Glu, Glu::clamped>{}, width);
    });
  });
}

}  // namespace

void expert_glu_forward(Exec& exec, View act, ConstView gate_up, const ExpertRows& rows) {
  with_kind(
      rows,
      [&](auto type, auto kind, auto width) {
        using T = decltype(type);
        forward<T, kind, width><<<static_cast<unsigned>(act.dim(0)), row_threads, 0, stream_of(exec)>>>(
            pointer<T>(act), act.ld(), pointer<T>(gate_up), gate_up.ld(), biases_of<T>(rows),
            static_cast<int>(act.dim(1)));
      },
      act, gate_up);
  check_launch("expert_glu_forward");
}

void expert_glu_backward(Exec& exec, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows) {
  with_kind(
      rows,
      [&](auto type, auto kind, auto width) {
        using T = decltype(type);
        const BackwardTask<T> task{pointer<T>(grads.dgate_up),
                                   pointer<T>(grads.act),
                                   pointer<T>(dact),
                                   pointer<T>(gate_up),
                                   grads.dgate_up.ld(),
                                   grads.act.ld(),
                                   dact.ld(),
                                   gate_up.ld(),
                                   pointer<float>(grads.dweights),
                                   pointer<float>(weights),
                                   biases_of<T>(rows),
                                   static_cast<int>(dact.dim(1))};
        backward<T, kind, width><<<static_cast<unsigned>(dact.dim(0)), row_threads, 0, stream_of(exec)>>>(task);
      },
      dact, gate_up, grads.act, grads.dgate_up);
  check_launch("expert_glu_backward");
}

}  // namespace inlay::ops::cuda
