#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

#include "backend/cuda/attention_graphs.h"
#include "core/environment.h"
#include "ops/attention/attention.h"
#include "ops/attention/cuda_scratch.h"
#include "ops/attention/plain_cuda.h"
#include "ops/attention/rule_cuda.h"

// Attention on a GPU takes one of three routes: cuDNN's graphs where there is one (bf16, heads of a multiple of 8),
// else our own kernels on the tensor cores (bf16, heads of 64, 96, 128 and 256), else our plain ones. A rule takes the
// second, or the interpreter in the third. INLAY_ATTENTION=plain takes the third always; =cudnn makes it an error that
// cuDNN cannot; =compiled passes cuDNN by.
namespace inlay::ops::cuda {

namespace {

using backend::cuda::attention_tensor_count;
using backend::cuda::AttentionBuffers;
using backend::cuda::AttentionGraph;
using backend::cuda::AttentionGraphKey;
using backend::cuda::AttentionGraphs;
using backend::cuda::AttentionStrides;
using backend::cuda::AttentionTensor;
using backend::cuda::check;
using backend::cuda::check_launch;
using backend::cuda::gpu;
using backend::cuda::stream_of;

enum class Route { any, plain, cudnn, compiled };

Route wanted_route() {
  const auto value = environment("INLAY_ATTENTION");
  if (!value) return Route::any;
  return *value == "plain" ? Route::plain : *value == "cudnn" ? Route::cudnn : Route::compiled;
}

AttentionHeads heads_of(const AttentionTensors& tensors) {
  return {tensors.q.dim(1), tensors.k.dim(1), tensors.q.dim(2)};
}

// Documents of one length make a dense batch, where the length is a multiple of 128. Any other batch is ragged: every
// length of its own would be a graph of its own, and a graph takes a second to build. So its documents and their
// longest are counted up to a power of two; what is too many is empty, and costs blocks that end at once.
AttentionLayout layout_of(const AttentionSpec& spec) {
  const auto offsets = spec.host_cu_seqlens;
  AttentionLayout layout;
  layout.documents = static_cast<std::int64_t>(offsets.size()) - 1;
  layout.tokens = offsets.back();
  std::int64_t shortest = layout.tokens;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    const std::int64_t length = offsets[i] - offsets[i - 1];
    layout.longest = std::max(layout.longest, length);
    shortest = std::min(shortest, length);
  }
  layout.length = layout.longest;
  layout.ragged = shortest != layout.longest || layout.longest % 128 != 0;
  if (layout.ragged) {
    const auto power_of_two = [](std::int64_t count) {
      return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
    };
    layout.documents = power_of_two(layout.documents);
    layout.length = std::max<std::int64_t>(power_of_two(layout.longest), 512);
  }
  return layout;
}

// Hands out parts of the op's scratch.
class Carver {
 public:
  explicit Carver(View scratch) : begin_(static_cast<std::byte*>(scratch.data())), size_(scratch.bytes()) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    if (bytes > size_ - used_) {
      throw InternalError(fmt::format("attention: wants {} bytes of scratch and was given {}", used_ + bytes, size_));
    }
    used_ += bytes;
    return reinterpret_cast<T*>(begin_ + used_ - bytes);
  }
  // The workspace of a graph; last, so that the message tells the whole.
  void* take_workspace(const AttentionGraph& graph) {
    return take<std::byte>(static_cast<std::int64_t>(graph.workspace_bytes()));
  }

 private:
  std::byte* begin_;
  std::size_t size_, used_ = 0;
};

struct TokenStrides {
  std::int64_t values[attention_tensor_count];
};

// lengths[i] and offsets[tensor][i] of every document; those behind the last are empty.
__global__ void index_kernel(std::int32_t* lengths, std::int64_t* offsets, const std::int32_t* cu_seqlens,
                             int documents, int padded_documents, TokenStrides strides) {
  const int document = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (document > padded_documents) return;
  const int begin = cu_seqlens[min(document, documents)];
  if (document < padded_documents) lengths[document] = cu_seqlens[min(document + 1, documents)] - begin;
#pragma unroll
  for (int tensor = 0; tensor < static_cast<int>(attention_tensor_count); ++tensor) {
    offsets[tensor * static_cast<std::int64_t>(padded_documents + 1) + document] = begin * strides.values[tensor];
  }
}

void make_index(Exec& exec, AttentionBuffers& buffers, const AttentionGraphKey& key, const AttentionSpec& spec,
                Carver& carver) {
  if (!key.ragged) return;
  auto* lengths = carver.take<std::int32_t>(key.documents);
  auto* offsets = carver.take<std::int64_t>((key.documents + 1) * static_cast<std::int64_t>(attention_tensor_count));
  TokenStrides strides{};
  for (std::size_t i = 0; i < attention_tensor_count; ++i) strides.values[i] = key.strides[i].token;
  const auto blocks = static_cast<unsigned>(key.documents / 256 + 1);
  index_kernel<<<blocks, 256, 0, stream_of(exec)>>>(
      lengths, offsets, static_cast<const std::int32_t*>(spec.cu_seqlens.data()),
      static_cast<int>(spec.cu_seqlens.dim(0)) - 1, static_cast<int>(key.documents), strides);
  check_launch("attention");
  buffers.lengths = lengths;
  buffers.offsets = offsets;
}

// packed[part][document][head of the part][token] = lse[token of the batch][head]
__global__ void pack_lse_kernel(float* packed, const float* lse, std::int64_t lse_stride, std::int64_t length,
                                std::int64_t tokens, int heads, int heads_of_part) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= tokens * heads) return;
  const std::int64_t position = index % length, row = index / length;
  const int head = static_cast<int>(row % heads_of_part);
  const std::int64_t documents = tokens / length, document = row / heads_of_part % documents;
  const std::int64_t part = row / heads_of_part / documents;
  packed[index] = lse[(document * length + position) * lse_stride + part * heads_of_part + head];
}

// Copies heads between a strided tensor and a packed one, in vectors of eight elements.
struct Copy {
  uint4* packed;
  uint4* strided;
  std::int64_t token_stride, head_stride;  // of `strided`, in vectors
  int heads;
};
struct Copies {
  Copy items[3];
};

enum class Direction : bool { pack, unpack };

template <Direction direction>
__global__ void copy_kernel(const __grid_constant__ Copies copies, std::int64_t tokens, int vectors_of_head) {
  const Copy& copy = copies.items[blockIdx.y];
  const std::int64_t row = static_cast<std::int64_t>(copy.heads) * vectors_of_head;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= tokens * row) return;
  const std::int64_t token = index / row;
  const int column = static_cast<int>(index % row), head = column / vectors_of_head;
  uint4* const strided = copy.strided + token * copy.token_stride + head * copy.head_stride + column % vectors_of_head;
  if constexpr (direction == Direction::pack) {
    copy.packed[index] = *strided;
  } else {
    *strided = copy.packed[index];
  }
}

AttentionStrides strides_of(const ConstView& view) { return {view.stride(0), view.stride(1)}; }

AttentionGraphKey key_of(const AttentionLayout& layout, const AttentionHeads& part, const AttentionTensors& tensors,
                         const AttentionSpec& spec) {
  using enum AttentionTensor;
  AttentionGraphKey key;
  key.ragged = layout.ragged;
  key.documents = layout.documents;
  key.length = layout.length;
  key.heads = part.heads;
  key.kv_heads = part.kv_heads;
  key.head_size = part.head_size;
  key.window = spec.window < layout.longest ? spec.window : 0;
  key.scale = spec.scale;
  key.stride(q) = strides_of(tensors.q);
  key.stride(k) = strides_of(tensors.k);
  key.stride(v) = strides_of(tensors.v);
  key.stride(out) = strides_of(tensors.out);
  key.stride(lse) = {tensors.lse.stride(0), 1};
  return key;
}

// The graph, or none where our own kernel has to do; where cuDNN was asked for by name, that is an error.
const AttentionGraph* graph_of(Exec& exec, const AttentionGraphKey& key, Route route) {
  const AttentionGraph& graph = gpu(exec).part<AttentionGraphs>().find(exec, key);
  if (graph.supported()) return &graph;
  if (route == Route::cudnn) {
    user_error("INLAY_ATTENTION=cudnn: cuDNN has no plan for the {}: {}", key.str(), graph.reason());
  }
  return nullptr;
}

[[noreturn]] void refuse(std::string_view pass, const AttentionHeads& heads, DType dtype) {
  user_error("INLAY_ATTENTION=cudnn: cuDNN's {} pass cannot take {} heads of {} in {} here", pass, heads.heads,
             heads.head_size, name_of(dtype));
}

const void* advance(const void* memory, std::int64_t elements, std::size_t element_bytes) {
  return static_cast<const std::byte*>(memory) + elements * static_cast<std::int64_t>(element_bytes);
}

// The same said by a rule, for the kernels that are compiled for one.
AttentionSpec by_rule(Exec& exec, AttentionSpec spec) {
  if (spec.rule == nullptr) spec.rule = &causal_rule(exec, spec.window);
  return spec;
}

bool cudnn_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, View scratch, Route route) {
  using enum AttentionTensor;
  const AttentionLayout layout = layout_of(spec);
  if (!in_eights({tensors.q, tensors.k, tensors.v, tensors.out}) || forward_bytes(layout) > scratch.bytes())
    return false;
  const AttentionGraphKey key = key_of(layout, heads_of(tensors), tensors, spec);
  const AttentionGraph* graph = graph_of(exec, key, route);
  if (graph == nullptr) return false;

  Carver carver(scratch);
  AttentionBuffers buffers;
  buffers[q] = tensors.q.data();
  buffers[k] = tensors.k.data();
  buffers[v] = tensors.v.data();
  buffers[out] = tensors.out.data();
  buffers[lse] = tensors.lse.data();
  make_index(exec, buffers, key, spec, carver);
  buffers.workspace = carver.take_workspace(*graph);
  graph->run(gpu(exec).cudnn_handle(), buffers);
  return true;
}

// cuDNN's backward pass, as many key heads at a time as scratch has room for.
class CudnnBackward {
 public:
  CudnnBackward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                const AttentionSpec& spec)
      : exec_(exec), grads_(grads), dout_(dout), tensors_(tensors), spec_(spec), layout_(layout_of(spec)) {}

  bool run(View scratch, Route route) {
    if (layout_.ragged && all_.head_size > 128) return false;  // cuDNN 9.14 takes it, and gets it wrong
    if (!in_eights({tensors_.q, tensors_.k, tensors_.v, tensors_.out, dout_, grads_.dq, grads_.dk, grads_.dv})) {
      return false;
    }
    const std::int64_t count =
        kv_heads_that_fit(layout_, all_, spec_.deterministic, tensors_.lse.stride(0), scratch.bytes());
    if (count == 0) return false;
    part_ = all_.part(count);
    const AttentionGraphKey key = backward_key();
    const AttentionGraph* graph = graph_of(exec_, key, route);
    if (graph == nullptr) return false;

    Carver carver(scratch);
    prepare(key, carver);
    buffers_.workspace = carver.take_workspace(*graph);
    for (std::int64_t part = 0; part < all_.kv_heads / count; ++part) {
      point_to(part);
      if (layout_.ragged) copy<Direction::pack>(part, packed_, {tensors_.q, tensors_.k, tensors_.v});
      graph->run(gpu(exec_).cudnn_handle(), buffers_);
      if (layout_.ragged) copy<Direction::unpack>(part, packed_grads_, {grads_.dq, grads_.dk, grads_.dv});
    }
    return true;
  }

 private:
  AttentionGraphKey backward_key() const {
    using enum AttentionTensor;
    AttentionGraphKey key = key_of(layout_, part_, tensors_, spec_);
    key.backward = true;
    key.deterministic = spec_.deterministic;
    key.stride(dout) = strides_of(dout_);
    if (layout_.ragged) {
      // cuDNN writes a gradient at the offsets of its tensor, so the two are laid out alike; and it sizes its workspace
      // by their strides, so both are packed, in scratch.
      key.tokens = round_up_coarsely(layout_.tokens);
      key.stride(q) = key.stride(dq) = {part_.heads * part_.head_size, part_.head_size};
      key.stride(k) = key.stride(v) = key.stride(dk) =
          key.stride(dv) = {part_.kv_heads * part_.head_size, part_.head_size};
    } else {
      key.stride(lse) = {};  // packed
      key.stride(dq) = strides_of(grads_.dq);
      key.stride(dk) = strides_of(grads_.dk);
      key.stride(dv) = strides_of(grads_.dv);
    }
    return key;
  }

  void prepare(const AttentionGraphKey& key, Carver& carver) {
    if (layout_.ragged) {
      make_index(exec_, buffers_, key, spec_, carver);
      // cuDNN writes every row that the graph was told of, not only those of documents.
      const std::int64_t elements = key.tokens * part_.head_size;
      for (auto* const packed : {&packed_, &packed_grads_}) {
        for (std::size_t i = 0; i < packed->size(); ++i) {
          const std::int64_t heads = i == 0 ? part_.heads : part_.kv_heads;
          (*packed)[i] = carver.take<std::uint16_t>(elements * heads);
          // Rows behind the last document are read in whole tiles: whatever is masked must be finite.
          const std::int64_t used = layout_.tokens * part_.head_size * heads;
          check(cudaMemsetAsync((*packed)[i] + used, 0, static_cast<std::size_t>(elements * heads - used) * 2,
                                stream_of(exec_)),
                "attention");
        }
      }
      return;
    }
    const std::int64_t rows = layout_.tokens * all_.heads;
    packed_lse_ = carver.take<float>(rows);
    pack_lse_kernel<<<static_cast<unsigned>((rows + 255) / 256), 256, 0, stream_of(exec_)>>>(
        packed_lse_, static_cast<const float*>(tensors_.lse.data()), tensors_.lse.stride(0), layout_.length,
        layout_.tokens, static_cast<int>(all_.heads), static_cast<int>(part_.heads));
    check_launch("attention");
  }

  // The tensors from the part's first head on.
  void point_to(std::int64_t part) {
    using enum AttentionTensor;
    const std::int64_t head = part * part_.heads, kv_head = part * part_.kv_heads;
    const auto from_head = [](const ConstView& view, std::int64_t first) {
      return advance(view.data(), first * view.stride(1), size_of(view.dtype()));
    };
    buffers_[out] = from_head(tensors_.out, head);
    buffers_[dout] = from_head(dout_, head);
    if (layout_.ragged) {
      buffers_[lse] = advance(tensors_.lse.data(), head, sizeof(float));
      buffers_[q] = packed_[0];
      buffers_[k] = packed_[1];
      buffers_[v] = packed_[2];
      buffers_[dq] = packed_grads_[0];
      buffers_[dk] = packed_grads_[1];
      buffers_[dv] = packed_grads_[2];
    } else {
      buffers_[lse] = packed_lse_ + layout_.tokens * head;
      buffers_[q] = from_head(tensors_.q, head);
      buffers_[k] = from_head(tensors_.k, kv_head);
      buffers_[v] = from_head(tensors_.v, kv_head);
      buffers_[dq] = from_head(grads_.dq, head);
      buffers_[dk] = from_head(grads_.dk, kv_head);
      buffers_[dv] = from_head(grads_.dv, kv_head);
    }
  }

  // Between the part's heads of strided tensors and their packed copies.
  template <Direction direction>
  void copy(std::int64_t part, const std::array<std::uint16_t*, 3>& packed, const std::array<ConstView, 3>& strided) {
    constexpr int width = 8;  // elements of a vector
    Copies copies{};
    for (std::size_t i = 0; i < packed.size(); ++i) {
      const std::int64_t heads = i == 0 ? part_.heads : part_.kv_heads;
      const void* first = advance(strided[i].data(), part * heads * strided[i].stride(1), sizeof(std::uint16_t));
      copies.items[i] = {reinterpret_cast<uint4*>(packed[i]), static_cast<uint4*>(const_cast<void*>(first)),
                         strided[i].stride(0) / width, strided[i].stride(1) / width, static_cast<int>(heads)};
    }
    const int vectors_of_head = static_cast<int>(part_.head_size) / width;
    const std::int64_t vectors = layout_.tokens * part_.heads * vectors_of_head;
    const dim3 grid(static_cast<unsigned>((vectors + 255) / 256), 3);
    copy_kernel<direction><<<grid, 256, 0, stream_of(exec_)>>>(copies, layout_.tokens, vectors_of_head);
    check_launch("attention");
  }

  Exec& exec_;
  const AttentionGrads& grads_;
  ConstView dout_;
  const AttentionTensors& tensors_;
  const AttentionSpec& spec_;
  AttentionLayout layout_;
  AttentionHeads all_ = heads_of(tensors_);
  AttentionHeads part_;
  AttentionBuffers buffers_;
  std::array<std::uint16_t*, 3> packed_{}, packed_grads_{};  // q, k, v and theirs, of a part of ragged documents
  float* packed_lse_ = nullptr;                              // of a dense batch
};

}  // namespace

void attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec, View scratch) {
  const Route route = wanted_route();
  const bool cudnn = spec.rule == nullptr && (route == Route::any || route == Route::cudnn);
  if (cudnn && cudnn_forward(exec, tensors, spec, scratch, route)) return;
  if (cudnn && route == Route::cudnn) refuse("forward", heads_of(tensors), tensors.q.dtype());
  if (route != Route::plain && compiled_attention_forward(exec, tensors, by_rule(exec, spec))) return;
  const auto plain = spec.rule == nullptr ? plain_attention_forward : interpreted_attention_forward;
  plain(exec, tensors, spec);
}

void attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec, View scratch) {
  const Route route = wanted_route();
  const bool cudnn = spec.rule == nullptr && (route == Route::any || route == Route::cudnn);
  if (cudnn && CudnnBackward(exec, grads, dout, tensors, spec).run(scratch, route)) return;
  if (cudnn && route == Route::cudnn) refuse("backward", heads_of(tensors), tensors.q.dtype());
  auto* delta = Carver(scratch).take<float>(tensors.q.dim(0) * tensors.q.dim(1));
  if (route != Route::plain && compiled_attention_backward(exec, grads, dout, tensors, by_rule(exec, spec), delta)) {
    return;
  }
  const auto plain = spec.rule == nullptr ? plain_attention_backward : interpreted_attention_backward;
  plain(exec, grads, dout, tensors, spec, delta);
}

}  // namespace inlay::ops::cuda
