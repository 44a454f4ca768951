#include "model/attention_block.h"

#include <cmath>

#include "model/decoding.h"
#include "model/norm_grads.h"
#include "ops/attention/decode.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace inlay::model {

using backend::CostScope;
using backend::Grad;
using backend::ScratchScope;
using backend::StepPart;

namespace {

void backward_bias(Exec& exec, weights::Parameter& bias, ConstView dy) {
  if (bias.shape.rank() > 0) ops::bias_backward(exec, bias.grad, bias.next_grad_mode(), dy);
}

}  // namespace

AttentionBlock::AttentionBlock(Exec& exec, const ModelConfig& config, const LayerConfig& layer,
                               AttentionParameters& parameters, const weights::WeightFactory& make_weight)
    : config_(config),
      layer_(layer),
      parameters_(parameters),
      qkv_(make_weight(exec, parameters.qkv)),
      output_(make_weight(exec, parameters.output)),
      rule_(attention_rule(config.attention, config.heads, layer.window)) {}

float AttentionBlock::scale() const { return 1.0f / std::sqrt(static_cast<float>(config_.head_dim)); }

ops::AttentionSpec AttentionBlock::spec(const LayerContext& context) const {
  return {.scale = scale(),
          .window = layer_.window,
          .cu_seqlens = context.batch.cu_seqlens,
          .host_cu_seqlens = context.batch.host_cu_seqlens,
          .deterministic = context.deterministic_attention,
          .rule = rule_.get(),
          .prefix_lengths = context.batch.prefix_lengths,
          .head_bias = context.head_bias,
          .sinks = parameters_.sinks.value};
}

ops::AttentionTensors AttentionBlock::tensors(View rotated, const Saved& saved) const {
  const std::int64_t q = config_.q_width(), kv = config_.kv_width();
  return {.q = rotated.slice_cols(0, q).split_cols(config_.heads),
          .k = rotated.slice_cols(q, q + kv).split_cols(config_.kv_heads),
          .v = saved.qkv.slice_cols(q + kv, q + 2 * kv).split_cols(config_.kv_heads),
          .out = saved.out.split_cols(config_.heads),
          .lse = saved.lse};
}

View AttentionBlock::normed(Exec& exec, ConstView x) {
  View norm = exec.arena().scratch("attention norm", x.dtype(), x.shape());
  ops::rms_norm_forward(exec, norm, x, parameters_.norm.value, config_.norm_eps);
  return norm;
}

void AttentionBlock::project(Exec& exec, View qkv, ConstView norm, const LayerContext& context) {
  qkv_->forward(exec, qkv, Grad::overwrite, norm);
  if (config_.qkv_bias) ops::add_bias(exec, qkv, parameters_.qkv_bias.value);
  if (config_.qk_norm) return;  // the rotation then works on the normed copies
  const View qk = qkv.slice_cols(0, config_.q_width() + config_.kv_width());
  ops::rope(exec, qk.split_cols(config_.heads + config_.kv_heads), context.batch.positions, context.rope_table,
            ops::Rotation::forward);
}

View AttentionBlock::rotated(Exec& exec, View qkv, const LayerContext& context) {
  if (!config_.qk_norm) return qkv;
  const std::int64_t q = config_.q_width(), kv = config_.kv_width();
  View qk = exec.arena().scratch("normed queries and keys", qkv.dtype(), {qkv.dim(0), q + kv});
  ops::rms_norm_forward(exec, qk.slice_cols(0, q).split_cols(config_.heads),
                        qkv.slice_cols(0, q).split_cols(config_.heads), parameters_.q_norm.value, config_.norm_eps);
  ops::rms_norm_forward(exec, qk.slice_cols(q, q + kv).split_cols(config_.kv_heads),
                        qkv.slice_cols(q, q + kv).split_cols(config_.kv_heads), parameters_.k_norm.value,
                        config_.norm_eps);
  ops::rope(exec, qk.split_cols(config_.heads + config_.kv_heads), context.batch.positions, context.rope_table,
            ops::Rotation::forward);
  return qk;
}

void AttentionBlock::attend(Exec& exec, View rotated, const LayerContext& context, const Saved& saved) {
  ops::attention_forward(exec, tensors(rotated, saved), spec(context));
}

void AttentionBlock::output(Exec& exec, View delta, const Saved& saved) {
  output_->forward(exec, delta, Grad::overwrite, saved.out);
  if (config_.output_bias) ops::add_bias(exec, delta, parameters_.output_bias.value);
}

void AttentionBlock::forward(Exec& exec, View delta, ConstView x, const LayerContext& context,
                             const LayerPolicy& policy, Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t tokens = x.dim(0);
  const auto take = [&](View given, Activation activation, std::string_view name, DType dtype, Shape shape) {
    if (!given.absent()) return given;
    return policy.keeps(activation) ? arena.keep(MemoryClass::activations, name, dtype, shape)
                                    : arena.scratch(name, dtype, shape);
  };
  const ScratchScope scope(arena);
  View out = take(saved.out, Activation::attention, "attention output", x.dtype(), {tokens, config_.q_width()});
  View lse = take(saved.lse, Activation::attention, "attention log-sum-exp", DType::f32, {tokens, config_.heads});
  View qkv = take({}, Activation::qkv, "qkv", x.dtype(), {tokens, config_.qkv_width()});
  {
    const ScratchScope norm_scope(arena);
    View norm = take({}, Activation::attention_norm, "attention norm", x.dtype(), x.shape());
    ops::rms_norm_forward(exec, norm, x, parameters_.norm.value, config_.norm_eps);
    project(exec, qkv, norm, context);
    if (policy.keeps(Activation::attention_norm)) saved.norm = norm;
  }
  const Saved working = {.norm = {}, .qkv = qkv, .out = out, .lse = lse};
  {
    const ScratchScope rotated_scope(arena);
    attend(exec, rotated(exec, qkv, context), context, working);
  }
  output(exec, delta, working);
  if (policy.keeps(Activation::qkv)) saved.qkv = qkv;
  if (policy.keeps(Activation::attention)) {
    saved.out = out;
    saved.lse = lse;
  }
}

void AttentionBlock::decode(Exec& exec, View delta, ConstView x, const LayerContext& context, const LayerCache& cache,
                            std::int64_t position) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t sequences = x.dim(0), q = config_.q_width(), kv = config_.kv_width();
  View out = arena.scratch("attention output", x.dtype(), {sequences, q});
  View qkv = arena.scratch("qkv", x.dtype(), {sequences, config_.qkv_width()});
  {
    const ScratchScope norm_scope(arena);
    project(exec, qkv, normed(exec, x), context);
  }
  {
    const ScratchScope rotated_scope(arena);
    const View qk = rotated(exec, qkv, context);
    ops::cast(exec, cache.key(position), qk.slice_cols(q, q + kv).split_cols(config_.kv_heads));
    ops::cast(exec, cache.value(position), qkv.slice_cols(q + kv, q + 2 * kv).split_cols(config_.kv_heads));
    ops::decode_attention(
        exec, out.split_cols(config_.heads), qk.slice_cols(0, q).split_cols(config_.heads), cache.keys, cache.values,
        {.scale = scale(), .length = position + 1, .window = layer_.window, .sinks = parameters_.sinks.value});
  }
  output(exec, delta, {.out = out});
}

void AttentionBlock::recompute(Exec& exec, ConstView x, const LayerContext& context, Saved& saved) {
  const CostScope again(exec, StepPart::recompute);
  Arena& arena = exec.arena();
  const std::int64_t tokens = x.dim(0);
  if (saved.qkv.absent()) {
    saved.qkv = arena.scratch("qkv", x.dtype(), {tokens, config_.qkv_width()});
    const ScratchScope scope(arena);
    project(exec, saved.qkv, saved.norm.absent() ? normed(exec, x) : saved.norm, context);
  }
  if (saved.out.absent()) {
    saved.out = arena.scratch("attention output", x.dtype(), {tokens, config_.q_width()});
    saved.lse = arena.scratch("attention log-sum-exp", DType::f32, {tokens, config_.heads});
    const ScratchScope scope(arena);
    attend(exec, rotated(exec, saved.qkv, context), context, saved);
  }
}

void AttentionBlock::backward(Exec& exec, View grad, ConstView x, const LayerContext& context, const Saved& saved) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t tokens = x.dim(0), q = config_.q_width(), kv = config_.kv_width();
  const auto again = [&](const auto& work) {
    const CostScope cost(exec, StepPart::recompute);
    return work();
  };

  View dqkv = arena.scratch("qkv gradient", x.dtype(), {tokens, config_.qkv_width()});
  {
    const ScratchScope attention_scope(arena);
    View dout = arena.scratch("attention output gradient", x.dtype(), {tokens, q});
    backward_bias(exec, parameters_.output_bias, grad);
    output_->backward(exec, dout, Grad::overwrite, grad, saved.out);

    const View qk = again([&] { return rotated(exec, saved.qkv, context); });
    const View dq = dqkv.slice_cols(0, q).split_cols(config_.heads);
    const View dk = dqkv.slice_cols(q, q + kv).split_cols(config_.kv_heads);
    const View dv = dqkv.slice_cols(q + kv, q + 2 * kv).split_cols(config_.kv_heads);
    weights::Parameter& sinks = parameters_.sinks;
    ops::attention_backward(exec,
                            {.dq = dq, .dk = dk, .dv = dv, .dsinks = sinks.grad, .dsinks_mode = sinks.next_grad_mode()},
                            dout.split_cols(config_.heads), tensors(qk, saved), spec(context));
    ops::rope(exec, dqkv.slice_cols(0, q + kv).split_cols(config_.heads + config_.kv_heads), context.batch.positions,
              context.rope_table, ops::Rotation::backward);
    if (config_.qk_norm) {
      ops::rms_norm_backward(exec, norm_grads(dq, Grad::overwrite, parameters_.q_norm), dq,
                             saved.qkv.slice_cols(0, q).split_cols(config_.heads), parameters_.q_norm.value,
                             config_.norm_eps);
      ops::rms_norm_backward(exec, norm_grads(dk, Grad::overwrite, parameters_.k_norm), dk,
                             saved.qkv.slice_cols(q, q + kv).split_cols(config_.kv_heads), parameters_.k_norm.value,
                             config_.norm_eps);
    }
  }
  backward_bias(exec, parameters_.qkv_bias, dqkv);
  const View norm = again([&] { return saved.norm.absent() ? normed(exec, x) : saved.norm; });
  const View dnorm = norm;  // will have served: its memory takes the gradient
  qkv_->backward(exec, dnorm, Grad::overwrite, dqkv, norm);
  ops::rms_norm_backward(exec, norm_grads(grad, Grad::accumulate, parameters_.norm), dnorm, x, parameters_.norm.value,
                         config_.norm_eps);
}

}  // namespace inlay::model
