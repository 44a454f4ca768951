#pragma once

#include <algorithm>
#include <initializer_list>

#include "backend/cuda/context_internal.h"
#include "ops/attention/attention.h"
#include "ops/attention/plain_cuda.cuh"

// Launches the kernels of attention_plain_cuda.cuh for any rule of theirs.
namespace inlay::ops::cuda::plain {

template <class T>
Tokens<const T> input(const ConstView& view) {
  return {static_cast<const T*>(view.data()), view.stride(0), view.stride(1)};
}

template <class T>
Tokens<T> output(const View& view) {
  return {static_cast<T*>(view.data()), view.stride(0), view.stride(1)};
}

// Whether every row of every tensor may be read four elements at a time.
inline bool in_fours(std::initializer_list<ConstView> views) {
  return std::ranges::all_of(views, [](const ConstView& view) {
    return view.dim(2) % 4 == 0 && view.stride(0) % 4 == 0 && view.stride(1) % 4 == 0 &&
           reinterpret_cast<std::uintptr_t>(view.data()) % (4 * size_of(view.dtype())) == 0;
  });
}

inline Shape shape_of(const AttentionTensors& tensors, const AttentionSpec& spec, bool vectors) {
  Shape shape{};
  shape.cu_seqlens = static_cast<const std::int32_t*>(spec.cu_seqlens.data());
  shape.documents = static_cast<std::int32_t>(spec.cu_seqlens.dim(0) - 1);
  shape.heads = static_cast<std::int32_t>(tensors.q.dim(1));
  shape.kv_heads = static_cast<std::int32_t>(tensors.k.dim(1));
  shape.head_size = static_cast<std::int32_t>(tensors.q.dim(2));
  shape.lse_stride = tensors.lse.stride(0);
  shape.scale = spec.scale;
  shape.vectors = vectors;
  return shape;
}

// Calls work(constant) with the smallest supported size that holds the head.
template <class Work>
void with_padded_size(std::int64_t head_size, Work&& work) {
  if (head_size <= 32) return work(std::integral_constant<int, 32>());
  if (head_size <= 64) return work(std::integral_constant<int, 64>());
  if (head_size <= 128) return work(std::integral_constant<int, 128>());
  INLAY_ASSERT(head_size <= 256, "attention: heads of {} elements, at most 256 are supported", head_size);
  return work(std::integral_constant<int, 256>());
}

// Launches a kernel over all tiles of all documents, for each of the heads.
template <class Task>
void launch(Exec& exec, void (*kernel)(Task), const Task& task, std::int64_t tokens, int rows, std::int64_t heads,
            int shared_floats) {
  const std::size_t shared_bytes = static_cast<std::size_t>(shared_floats) * sizeof(float);
  backend::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
      "attention");
  const std::int64_t tiles = tokens / rows + task.shape.documents;  // see find_tile
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(heads));
  kernel<<<grid, threads, shared_bytes, backend::cuda::stream_of(exec)>>>(task);
  backend::cuda::check_launch("attention");
}

template <class T, class Rule>
void forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, const Rule& rule) {
  const bool vectors = in_fours({tensors.q, tensors.k, tensors.v});
  const Forward<T, Rule> task{shape_of(tensors, spec, vectors),
                              rule,
                              input<T>(tensors.q),
                              input<T>(tensors.k),
                              input<T>(tensors.v),
                              output<T>(tensors.out),
                              static_cast<float*>(tensors.lse.data())};
  with_padded_size(tensors.q.dim(2), [&](auto size) {
    constexpr int padded = size;
    launch(exec, forward_kernel<padded, T, Rule>, task, tensors.q.dim(0), tile_rows<padded>, tensors.q.dim(1),
           2 * tile_floats<padded> + weight_floats<padded>);
  });
}

template <class T, class Rule>
Backward<T, Rule> backward_task(const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                                const AttentionSpec& spec, const Rule& rule, float* delta) {
  return {shape_of(tensors, spec, in_fours({tensors.q, tensors.k, tensors.v, tensors.out, dout})),
          rule,
          input<T>(tensors.q),
          input<T>(tensors.k),
          input<T>(tensors.v),
          input<T>(tensors.out),
          input<T>(dout),
          output<T>(grads.dq),
          output<T>(grads.dk),
          output<T>(grads.dv),
          static_cast<const float*>(tensors.lse.data()),
          delta};
}

template <class T, class Rule>
void compute_delta(Exec& exec, const Backward<T, Rule>& task, std::int64_t tokens) {
  constexpr std::int64_t rows_per_block = threads / 32;
  const std::int64_t blocks = (tokens * task.shape.heads + rows_per_block - 1) / rows_per_block;
  delta_kernel<T, Rule><<<static_cast<unsigned>(blocks), threads, 0, backend::cuda::stream_of(exec)>>>(task, tokens);
  backend::cuda::check_launch("attention");
}

template <class T, class Rule>
void backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
              const AttentionSpec& spec, const Rule& rule, float* delta) {
  const std::int64_t tokens = tensors.q.dim(0), heads = tensors.q.dim(1);
  const auto task = backward_task<T>(grads, dout, tensors, spec, rule, delta);
  compute_delta(exec, task, tokens);
  with_padded_size(tensors.q.dim(2), [&](auto size) {
    constexpr int padded = size, rows = tile_rows<padded>;
    launch(exec, key_gradient_kernel<padded, T, Rule>, task, tokens, rows, tensors.k.dim(1),
           4 * tile_floats<padded> + 2 * weight_floats<padded>);
    launch(exec, query_gradient_kernel<padded, T, Rule>, task, tokens, rows, heads,
           4 * tile_floats<padded> + weight_floats<padded>);
  });
}

}  // namespace inlay::ops::cuda::plain
