#include "ops/attention/plain_cuda.h"
#include "ops/attention/plain_launch.cuh"
#include "ops/attention/rules/rule.h"

// A rule's nodes travel to the device as they are, and every pair of tokens runs through them.
namespace inlay::ops::cuda {

namespace {

using rules::Expressions;
using rules::Interval;
using rules::Node;
using rules::Op;
using rules::Term;

struct InterpretedRule {
  Node nodes[Expressions::most_nodes];
  Term mask, score, slope, end;  // end: behind the last node that any of them needs
  std::int32_t heads;
  const std::int32_t* prefix_lengths;
  const float* head_bias;

  using At = rules::Place;

  __device__ At at(const plain::Tile& tile, int head) const {
    return {static_cast<float>(head),
            static_cast<float>(tile.index),
            static_cast<float>(tile.length),
            prefix_lengths == nullptr ? 0.0f : static_cast<float>(prefix_lengths[tile.index]),
            static_cast<float>(heads),
            head_bias == nullptr ? 0.0f : head_bias[head]};
  }

  __device__ static float leaf(Op op, const At& at) {
    switch (op) {
      case Op::head: return at.head;
      case Op::document: return at.document;
      case Op::length: return at.length;
      case Op::prefix_length: return at.prefix_length;
      case Op::heads: return at.heads;
      default: return at.bias;
    }
  }

  // values[i] = node i's, for numbers and for intervals.
  template <class Value, class Constant>
  __device__ void run(Value* values, int stop, const At& at, const Value& query, const Value& key, const Value& s,
                      const Constant& constant) const {
    for (int i = 0; i < stop; ++i) {
      const Node& node = nodes[i];
      switch (node.op) {
        case Op::constant:
        case Op::truth: values[i] = constant(node.value); break;
        case Op::query: values[i] = query; break;
        case Op::key: values[i] = key; break;
        case Op::score: values[i] = s; break;
        default:
          values[i] = rules::is_leaf(node.op) ? constant(leaf(node.op, at))
                                              : rules::apply(node.op, values[node.a], values[node.b], values[node.c]);
      }
    }
  }

  __device__ plain::Pair pair(const At& at, int query, int key, int length, float s) const {
    if (query >= length || key >= length) return {false, 0.0f, 0.0f};
    float values[Expressions::most_nodes];
    run(values, end, at, static_cast<float>(query), static_cast<float>(key), s, [](float x) { return x; });
    return {values[mask] != 0.0f, values[score], values[slope]};
  }

  __device__ bool meet(const At& at, int query, int key, int queries, int keys, int length) const {
    const auto positions = [&](int first, int count) {
      return Interval{static_cast<float>(first), static_cast<float>(min(first + count, length) - 1)};
    };
    Interval values[Expressions::most_nodes];
    run(values, mask + 1, at, positions(query, queries), positions(key, keys), rules::whole_line(),
        [](float x) { return rules::point(x); });
    return values[mask].high != 0.0f;
  }

  __device__ int first_key(const plain::Tile&, int) const { return 0; }
  __device__ int end_of_keys(const plain::Tile& queries, int) const { return queries.length; }
  __device__ int first_query(const plain::Tile&) const { return 0; }
  __device__ int end_of_queries(const plain::Tile& keys, int) const { return keys.length; }
};

InterpretedRule rule_of(const AttentionTensors& tensors, const AttentionSpec& spec) {
  const AttentionRule& rule = *spec.rule;
  InterpretedRule result{};
  std::ranges::copy(rule.expressions().nodes(), result.nodes);
  result.mask = rule.mask();
  result.score = rule.score();
  result.slope = rule.slope();
  result.end = static_cast<Term>(std::max({rule.mask(), rule.score(), rule.slope()}) + 1);
  result.heads = static_cast<std::int32_t>(tensors.q.dim(1));
  result.prefix_lengths = static_cast<const std::int32_t*>(spec.prefix_lengths.data());
  result.head_bias = static_cast<const float*>(spec.head_bias.data());
  return result;
}

}  // namespace

void interpreted_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  const InterpretedRule rule = rule_of(tensors, spec);
  if (tensors.q.dtype() == DType::bf16) return plain::forward<__nv_bfloat16>(exec, tensors, spec, rule);
  plain::forward<float>(exec, tensors, spec, rule);
}

void interpreted_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout,
                                    const AttentionTensors& tensors, const AttentionSpec& spec, float* delta) {
  const InterpretedRule rule = rule_of(tensors, spec);
  if (tensors.q.dtype() == DType::bf16) {
    return plain::backward<__nv_bfloat16>(exec, grads, dout, tensors, spec, rule, delta);
  }
  plain::backward<float>(exec, grads, dout, tensors, spec, rule, delta);
}

}  // namespace inlay::ops::cuda
