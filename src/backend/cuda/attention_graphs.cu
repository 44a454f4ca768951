#include "backend/cuda/attention_graphs.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // graphs are not written to disk, and it doubles the time to compile
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inlay::backend::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of a graph's inputs and outputs: a tensor's own number, its offsets', and the two copies of the lengths.
constexpr std::int64_t tensor_uid(AttentionTensor tensor) { return 1 + static_cast<std::int64_t>(tensor); }
constexpr std::int64_t offsets_uid(AttentionTensor tensor) { return 100 + static_cast<std::int64_t>(tensor); }
constexpr std::int64_t query_lengths_uid = 200, key_lengths_uid = 201;

std::vector<AttentionTensor> tensors_of(const AttentionGraphKey& key) {
  using enum AttentionTensor;
  if (!key.backward) return {q, k, v, out, lse};
  return {q, k, v, out, lse, dout, dq, dk, dv};
}

// Writes the key down as a graph of cudnn-frontend.
class Description {
 public:
  Description(fe::graph::Graph& graph, const AttentionGraphKey& key) : graph_(graph), key_(key) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    key_.backward ? describe_backward() : describe_forward();
  }

 private:
  void describe_forward() {
    using enum AttentionTensor;
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_mask(options);
    const auto [result, stats] = graph_.sdpa(input(q), input(k), input(v), options);
    set_output(result, out);
    set_output(stats, lse);
  }

  void describe_backward() {
    using enum AttentionTensor;
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_deterministic_algorithm(key_.deterministic);
    set_mask(options);
    if (key_.ragged) options.set_max_total_seq_len_q(key_.tokens).set_max_total_seq_len_kv(key_.tokens);
    const auto [query, key, value] =
        graph_.sdpa_backward(input(q), input(k), input(v), input(out), input(dout), input(lse), options);
    set_output(query, dq);
    set_output(key, dk);
    set_output(value, dv);
  }

  // With the diagonal at the top left, cudnn-frontend keeps a score where row + right_bound >= column and
  // column + left_bound > row (utils/attn_score_modifiers.h). Right bound 0 is key <= query; left bound W is
  // query - W < key, so W counts the query itself, as ours does. Queries and keys of a document are equally many: top
  // left and bottom right are the same diagonal.
  template <class Options>
  void set_mask(Options& options) {
    options.set_attn_scale(key_.scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (key_.window > 0 && key_.window < key_.length) {
      options.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    }
    if (key_.ragged) {
      options.set_padding_mask(true).set_seq_len_q(lengths(query_lengths_uid)).set_seq_len_kv(lengths(key_lengths_uid));
    }
  }

  Tensor lengths(std::int64_t uid) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({key_.documents, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }

  // Extents and strides in cuDNN's order: document, head, token, element.
  template <class Attributes>
  void lay_out(Attributes& attributes, AttentionTensor tensor) {
    using enum AttentionTensor;
    const bool of_keys = tensor == k || tensor == v || tensor == dk || tensor == dv;
    const std::int64_t heads = of_keys ? key_.kv_heads : key_.heads;
    const std::int64_t width = tensor == lse ? 1 : key_.head_size;
    const AttentionStrides stride = key_.stride(tensor);
    attributes.set_uid(tensor_uid(tensor))
        .set_dim({key_.documents, heads, key_.length, width})
        .set_data_type(tensor == lse ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16);
    if (tensor == lse && key_.packed_lse()) {
      attributes.set_stride({heads * key_.length, key_.length, 1, 1});
    } else {
      attributes.set_stride({key_.length * stride.token, stride.head, stride.token, 1});
    }
    if (key_.ragged) attributes.set_ragged_offset(offsets(tensor));
  }

  Tensor offsets(AttentionTensor tensor) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(offsets_uid(tensor))
                             .set_dim({key_.documents + 1, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT64));
  }

  Tensor input(AttentionTensor tensor) {
    fe::graph::Tensor_attributes attributes;
    lay_out(attributes, tensor);
    return graph_.tensor(attributes);
  }

  void set_output(const Tensor& result, AttentionTensor tensor) {
    lay_out(*result, tensor);
    result->set_output(true);
  }

  fe::graph::Graph& graph_;
  const AttentionGraphKey& key_;
};

}  // namespace

std::string AttentionGraphKey::str() const {
  return fmt::format("{} of {} {} of {} tokens, {} query and {} key heads of {}, window {}{}",
                     backward ? "backward pass" : "forward pass", documents, ragged ? "ragged documents" : "documents",
                     length, heads, kv_heads, head_size, window, deterministic ? ", deterministic" : "");
}

struct AttentionGraph::Implementation {
  fe::graph::Graph graph;
};

AttentionGraph::AttentionGraph(cudnnHandle_t handle, int sm_version, const AttentionGraphKey& key)
    : key_(key), implementation_(std::make_unique<Implementation>()) {
  fe::graph::Graph& graph = implementation_->graph;
  graph.set_sm_version(sm_version);
  Description(graph, key_);

  const auto succeeded = [&](fe::error_t error) {
    if (error.is_bad()) reason_ = error.get_message().empty() ? "no reason given" : error.get_message();
    return error.is_good();
  };
  std::int64_t bytes = 0;
  const bool ready = succeeded(graph.validate()) && succeeded(graph.build_operation_graph(handle)) &&
                     succeeded(graph.create_execution_plans({fe::HeurMode_t::A})) && succeeded(graph.check_support()) &&
                     succeeded(graph.build_plans()) && succeeded(graph.get_workspace_size(bytes));
  workspace_bytes_ = static_cast<std::size_t>(bytes);
  if (!ready) implementation_.reset();
}

AttentionGraph::~AttentionGraph() = default;

void AttentionGraph::run(cudnnHandle_t handle, const AttentionBuffers& buffers) const {
  INLAY_ASSERT(supported(), "attention: cuDNN has no plan for the {}: {}", key_.str(), reason_);
  const auto pointer = [](const void* memory) { return const_cast<void*>(memory); };  // cuDNN takes all alike
  std::unordered_map<std::int64_t, void*> pack;
  for (const AttentionTensor tensor : tensors_of(key_)) {
    const auto index = static_cast<std::size_t>(tensor);
    pack[tensor_uid(tensor)] = pointer(buffers.tensors[index]);
    if (key_.ragged) {
      pack[offsets_uid(tensor)] = pointer(buffers.offsets + index * static_cast<std::size_t>(key_.documents + 1));
    }
  }
  if (key_.ragged) {
    pack[query_lengths_uid] = pointer(buffers.lengths);
    pack[key_lengths_uid] = pointer(buffers.lengths);
  }
  fe::error_t error = implementation_->graph.execute(handle, pack, buffers.workspace);
  if (error.is_bad()) {
    throw InternalError(fmt::format("attention: cuDNN failed in the {}: {}", key_.str(), error.get_message()));
  }
}

const AttentionGraph& AttentionGraphs::find(Exec& exec, const AttentionGraphKey& key) {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return *found->graph;
  }
  const int sm_version = context_.properties().major * 10 + context_.properties().minor;
  auto graph = std::make_unique<AttentionGraph>(context_.cudnn_handle(), sm_version, key);
  if (!graph->supported()) {
    exec.say(Message::note,
             fmt::format("note: cuDNN has no plan for attention, {}; the built-in kernel takes over ({})", key.str(),
                         graph->reason()));
  }
  // A dropped graph may still be at work: it owns code that the GPU runs.
  if (entries_.size() == capacity) {
    check(cudaStreamSynchronize(context_.stream()), "attention graphs");
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(graph)});
  return *entries_.front().graph;
}

}  // namespace inlay::backend::cuda
