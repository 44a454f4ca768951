#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "backend/cuda/context_internal.h"

// cuDNN's attention as graphs that are built once and kept. A graph is made for one shape, one layout and one mask;
// building compiles it, which takes about a second, so keys are rounded where they may be (see ops/attention/cuda.cu)
// and the cache drops what was used longest ago. Includes CUDA's headers, so only .cu files include this.
namespace inlay::backend::cuda {

// Elements from one token, and from one head, to the next; within a head, elements are neighbours.
struct AttentionStrides {
  std::int64_t token = 0;
  std::int64_t head = 0;
  bool operator==(const AttentionStrides&) const = default;
};

// The tensors of a graph that are laid out by tokens. The order is that of the rows of the ragged offsets.
enum class AttentionTensor : std::uint8_t { q, k, v, out, lse, dout, dq, dk, dv };
inline constexpr std::size_t attention_tensor_count = 9;

// Everything a graph is built for. bf16 throughout, fp32 inside and in lse. Causal, always.
struct AttentionGraphKey {
  bool backward = false;
  // Documents of any length. Otherwise `documents` times exactly `length` tokens, a multiple of 128: up to 9.15 cuDNN's
  // dense backward pass needs a padding mask for other lengths.
  bool ragged = false;
  bool deterministic = false;  // backward only
  std::int64_t documents = 0;  // ragged: rounded up, the last ones are empty
  std::int64_t length = 0;     // ragged: no document is longer
  std::int64_t tokens = 0;     // ragged backward: no batch holds more; sizes the workspace
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
  std::int64_t window = 0;  // 0: unlimited; otherwise keys with query - window < key <= query
  float scale = 1.0f;
  std::array<AttentionStrides, attention_tensor_count> strides{};  // unused ones stay zero

  AttentionStrides& stride(AttentionTensor tensor) { return strides[static_cast<std::size_t>(tensor)]; }
  const AttentionStrides& stride(AttentionTensor tensor) const { return strides[static_cast<std::size_t>(tensor)]; }
  // cuDNN's backward pass reads the log-sum-exp of a dense batch as packed [documents, heads, length] whatever its
  // strides say (until 9.26); a ragged one as strided.
  bool packed_lse() const { return backward && !ragged; }
  bool operator==(const AttentionGraphKey&) const = default;
  std::string str() const;
};

// What a graph is run on, all in device memory.
struct AttentionBuffers {
  std::array<const void*, attention_tensor_count> tensors{};
  const std::int32_t* lengths = nullptr;  // [documents], where ragged
  const std::int64_t* offsets = nullptr;  // [attention_tensor_count, documents + 1] elements, where ragged
  void* workspace = nullptr;              // aligned to 256 bytes

  const void*& operator[](AttentionTensor tensor) { return tensors[static_cast<std::size_t>(tensor)]; }
};

class AttentionGraph {
 public:
  // Never throws because cuDNN has no plan: then supported() is false, and reason() says why.
  AttentionGraph(cudnnHandle_t handle, int sm_version, const AttentionGraphKey& key);
  ~AttentionGraph();
  AttentionGraph(const AttentionGraph&) = delete;
  AttentionGraph& operator=(const AttentionGraph&) = delete;

  bool supported() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  void run(cudnnHandle_t handle, const AttentionBuffers& buffers) const;

 private:
  struct Implementation;  // keeps cudnn_frontend.h out of this header

  AttentionGraphKey key_;
  std::unique_ptr<Implementation> implementation_;
  std::string reason_;
  std::size_t workspace_bytes_ = 0;
};

// The graphs of one GPU: gpu(exec).part<AttentionGraphs>().
class AttentionGraphs {
 public:
  static constexpr std::size_t capacity = 64;

  explicit AttentionGraphs(GpuContext& context) : context_(context) {}

  // The graph for the key, built if it is not there; says so where cuDNN has none. Valid until `capacity` other keys
  // were asked for.
  const AttentionGraph& find(Exec& exec, const AttentionGraphKey& key);

 private:
  struct Entry {
    AttentionGraphKey key;
    std::unique_ptr<AttentionGraph> graph;
  };

  GpuContext& context_;
  std::list<Entry> entries_;  // the latest used first; few enough to search in order
};

}  // namespace inlay::backend::cuda
