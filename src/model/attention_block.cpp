#include "model/attention_block.h"

#include <cmath>

#include "model/decoding.h"
#include "model/norm_grads.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

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
      answer_(config, parameters.output_norm),
      rule_(attention_rule(config.attention, config.heads, layer.window, config.score_softcap)) {}

float AttentionBlock::scale() const {
  return config_.score_scale > 0 ? config_.score_scale : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
}

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

ConstView AttentionBlock::normed(Exec& exec, ConstView x) {
  if (!config_.input_norms) return x;
  View norm = exec.arena().scratch("attention norm", x.dtype(), x.shape());
  ops::rms_norm_forward(exec, norm, x, parameters_.norm.value, norm_spec());
  return norm;
}

View AttentionBlock::norm_rows(View part, std::int64_t heads) const {
  return config_.qk_norm == QkNorm::heads ? part.split_cols(heads) : part;
}

void AttentionBlock::rotate(Exec& exec, View qk, const LayerContext& context, ops::Rotation rotation) {
  if (layer_.rope == LayerRope::none) return;
  const bool local = layer_.rope == LayerRope::local;
  const RopeConfig& rope = local ? config_.local_rope : config_.rope;
  ops::rope(exec, qk.split_cols(config_.heads + config_.kv_heads), context.batch.positions,
            context.rope_tables[local ? 1 : 0], rotation,
            rope.neighbours ? ops::RopePairs::neighbours : ops::RopePairs::halves);
}

void AttentionBlock::project(Exec& exec, View qkv, ConstView norm, const LayerContext& context,
                             const ops::Fp8Forms* codes) {
  qkv_->forward(exec, qkv, Grad::overwrite, norm, {.x = codes});
  if (config_.qkv_bias) ops::add_bias(exec, qkv, parameters_.qkv_bias.value);
  if (config_.qk_norm != QkNorm::none) return;  // the rotation then works on the normed copies
  rotate(exec, qkv.slice_cols(0, config_.q_width() + config_.kv_width()), context, ops::Rotation::forward);
}

View AttentionBlock::rotated(Exec& exec, View qkv, const LayerContext& context) {
  if (config_.qk_norm == QkNorm::none) return qkv;
  const std::int64_t q = config_.q_width(), kv = config_.kv_width();
  View qk = exec.arena().scratch("normed queries and keys", qkv.dtype(), {qkv.dim(0), q + kv});
  ops::rms_norm_forward(exec, norm_rows(qk.slice_cols(0, q), config_.heads),
                        norm_rows(qkv.slice_cols(0, q), config_.heads), parameters_.q_norm.value, norm_spec());
  ops::rms_norm_forward(exec, norm_rows(qk.slice_cols(q, q + kv), config_.kv_heads),
                        norm_rows(qkv.slice_cols(q, q + kv), config_.kv_heads), parameters_.k_norm.value, norm_spec());
  rotate(exec, qk, context, ops::Rotation::forward);
  return qk;
}

void AttentionBlock::attend(Exec& exec, View rotated, const LayerContext& context, const Saved& saved) {
  ops::attention_forward(exec, tensors(rotated, saved), spec(context));
}

void AttentionBlock::multiply_out(Exec& exec, View answer, const Saved& saved) {
  output_->forward(exec, answer, Grad::overwrite, saved.out);
  if (config_.output_bias) ops::add_bias(exec, answer, parameters_.output_bias.value);
}

void AttentionBlock::output(Exec& exec, View delta, const Saved& saved) {
  if (saved.answer.absent()) multiply_out(exec, delta, saved);
  answer_.forward(exec, delta, saved.answer.absent() ? delta : saved.answer);
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
  if (config_.input_norms) {
    if (policy.keeps(Activation::attention_norm)) {
      const InputNeed need = input_need(*qkv_, !policy.keeps(Activation::qkv));
      if (need == InputNeed::numbers) {
        saved.norm = arena.keep(MemoryClass::activations, "attention norm", x.dtype(), x.shape());
      } else if (need == InputNeed::codes) {
        saved.norm_codes = KeptCodes(exec, "attention norm", *qkv_, tokens, 0);
      }
    }
    const ScratchScope norm_scope(arena);
    View norm = saved.norm.absent() ? arena.scratch("attention norm", x.dtype(), x.shape()) : saved.norm;
    ops::rms_norm_forward(exec, norm, x, parameters_.norm.value, norm_spec());
    if (saved.norm_codes.absent()) {
      project(exec, qkv, norm, context);
    } else {
      const ops::Fp8Forms codes = saved.norm_codes.encode(exec, norm, 0);
      project(exec, qkv, {}, context, &codes);
    }
  } else {
    project(exec, qkv, x, context);
  }
  Saved working = {.norm = {}, .qkv = qkv, .out = out, .lse = lse, .answer = {}};
  {
    const ScratchScope rotated_scope(arena);
    attend(exec, rotated(exec, qkv, context), context, working);
  }
  if (answer_.is_needed() && policy.keeps(Activation::attention_answer)) {
    saved.answer = arena.keep(MemoryClass::activations, "attention answer", x.dtype(), x.shape());
    multiply_out(exec, saved.answer, working);
    working.answer = saved.answer;
  }
  output(exec, delta, working);
  if (policy.keeps(Activation::qkv)) saved.qkv = qkv;
  if (policy.keeps(Activation::attention)) {
    saved.out = out;
    saved.lse = lse;
  }
}

void AttentionBlock::decode(Exec& exec, View delta, ConstView x, const LayerContext& context, const LayerCache& cache,
                            const ops::CachePlaces& places) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t tokens = x.dim(0), q = config_.q_width(), kv = config_.kv_width();
  View out = arena.scratch("attention output", x.dtype(), {tokens, q});
  View qkv = arena.scratch("qkv", x.dtype(), {tokens, config_.qkv_width()});
  {
    const ScratchScope norm_scope(arena);
    project(exec, qkv, normed(exec, x), context);
  }
  {
    const ScratchScope rotated_scope(arena);
    const View qk = rotated(exec, qkv, context);
    ops::fill_cache(exec, cache.keys, cache.values,
                    {.k = qk.slice_cols(q, q + kv).split_cols(config_.kv_heads),
                     .v = qkv.slice_cols(q + kv, q + 2 * kv).split_cols(config_.kv_heads)},
                    places);
    if (!context.batch.cu_seqlens.absent()) {  // texts from their beginning: all that is to be seen is here
      const View lse = arena.scratch("attention log-sum-exp", DType::f32, {tokens, config_.heads});
      attend(exec, qk, context, {.qkv = qkv, .out = out, .lse = lse});
      return output(exec, delta, {.out = out});
    }
    ops::decode_attention(exec, out.split_cols(config_.heads), qk.slice_cols(0, q).split_cols(config_.heads),
                          cache.keys, cache.values,
                          {.scale = scale(),
                           .places = places,
                           .window = layer_.window,
                           .sinks = parameters_.sinks.value,
                           .softcap = config_.score_softcap});
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
  if (answer_.is_needed() && saved.answer.absent()) {
    saved.answer = arena.scratch("attention answer", x.dtype(), x.shape());
    multiply_out(exec, saved.answer, saved);
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
    {
      const ScratchScope answer_scope(arena);
      const ConstView danswer = answer_.backward(exec, grad, saved.answer);
      backward_bias(exec, parameters_.output_bias, danswer);
      output_->backward(exec, dout, Grad::overwrite, danswer, saved.out);
    }

    const View qk = again([&] { return rotated(exec, saved.qkv, context); });
    const View dq = dqkv.slice_cols(0, q).split_cols(config_.heads);
    const View dk = dqkv.slice_cols(q, q + kv).split_cols(config_.kv_heads);
    const View dv = dqkv.slice_cols(q + kv, q + 2 * kv).split_cols(config_.kv_heads);
    weights::Parameter& sinks = parameters_.sinks;
    ops::attention_backward(exec,
                            {.dq = dq, .dk = dk, .dv = dv, .dsinks = sinks.grad, .dsinks_mode = sinks.next_grad_mode()},
                            dout.split_cols(config_.heads), tensors(qk, saved), spec(context));
    rotate(exec, dqkv.slice_cols(0, q + kv), context, ops::Rotation::backward);
    const auto backward_norm = [&](weights::Parameter& norm, std::int64_t begin, std::int64_t end, std::int64_t heads) {
      const View d = norm_rows(dqkv.slice_cols(begin, end), heads);
      ops::rms_norm_backward(exec, norm_grads(d, Grad::overwrite, norm), d,
                             norm_rows(saved.qkv.slice_cols(begin, end), heads), norm.value, norm_spec());
    };
    if (config_.qk_norm != QkNorm::none) {
      backward_norm(parameters_.q_norm, 0, q, config_.heads);
      backward_norm(parameters_.k_norm, q, q + kv, config_.kv_heads);
    }
  }
  backward_bias(exec, parameters_.qkv_bias, dqkv);
  if (!config_.input_norms) return qkv_->backward(exec, grad, Grad::accumulate, dqkv, x);
  const View norm = saved.norm.absent() ? arena.scratch("attention norm", x.dtype(), x.shape()) : saved.norm;
  const ops::Fp8Forms* codes = saved.norm_codes.of_tile(0);
  if (saved.norm.absent() && codes == nullptr && qkv_->trainable()) {
    again([&] { ops::rms_norm_forward(exec, norm, x, parameters_.norm.value, norm_spec()); });
  }
  const View dnorm = norm;  // will have served: its memory takes the gradient
  qkv_->backward(exec, dnorm, Grad::overwrite, dqkv, codes != nullptr ? ConstView() : norm, {.x = codes});
  ops::rms_norm_backward(exec, norm_grads(grad, Grad::accumulate, parameters_.norm), dnorm, x, parameters_.norm.value,
                         norm_spec());
}

}  // namespace inlay::model
