#include <inlay/ops.h>

#include <algorithm>
#include <cmath>

#include "api/ops_workspace.h"
#include "backend/matmul.h"
#include "ops/attention/attention.h"
#include "ops/attention/rules/rule.h"
#include "ops/fused_linear_ce.h"
#include "ops/swiglu.h"
#include "weights/dense.h"

namespace inlay {

using api::expect;
using api::expect_activation;
using api::May;
using api::view;
using backend::Exec;
using backend::Grad;
using backend::Transpose;

Ops::Ops(Device device) : parts_(std::make_unique<Parts>(device)) {}
Ops::Ops(Ops&&) noexcept = default;
Ops& Ops::operator=(Ops&&) noexcept = default;
Ops::~Ops() = default;

void Ops::use_stream(void* stream) { parts_->stream = stream; }
void Ops::use_workspace(std::function<void*(std::size_t)> take) { parts_->take = std::move(take); }

void Ops::matmul(const Tensor& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, float alpha,
                 float beta) {
  constexpr const char* op = "matmul";
  expect_activation(op, "a", a, 2);
  expect_activation(op, "b", b, 2);
  const std::int64_t rows = a.shape[transpose_a ? 1 : 0], inner = a.shape[transpose_a ? 0 : 1];
  const std::int64_t columns = b.shape[transpose_b ? 0 : 1];
  expect(op, "b", b, a.dtype, transpose_b ? Shape{columns, inner} : Shape{inner, columns});
  expect(op, "c", c, c.dtype == DType::f32 ? DType::f32 : a.dtype, {rows, columns});
  parts_->run([&](Exec& exec) {
    backend::matmul(exec, view(c), view(a), Transpose{transpose_a}, view(b), Transpose{transpose_b},
                    {.alpha = alpha, .beta = beta});
  });
}

std::int64_t Ops::loss_chunk_rows(DType dtype, std::int64_t vocab, std::int64_t tokens) const {
  return ops::loss_chunk_rows(parts_->device(), dtype, vocab, tokens, 0);
}

namespace {

ops::Reduction reduction_of(LinearCrossEntropy::Reduction reduction) {
  switch (reduction) {
    case LinearCrossEntropy::Reduction::mean: return ops::Reduction::mean;
    case LinearCrossEntropy::Reduction::sum: return ops::Reduction::sum;
    case LinearCrossEntropy::Reduction::none: break;
  }
  return ops::Reduction::none;
}

void check(const LinearCrossEntropy& call) {
  constexpr const char* op = "linear_cross_entropy";
  const DType dtype = call.hidden.dtype;
  if (call.hidden.rank != 2 || call.weight.rank != 2) {
    user_error("{}: hidden and weight have {} and {} dimensions, expected 2 of each", op, call.hidden.rank,
               call.weight.rank);
  }
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    user_error("{}: hidden is {}, expected fp32, bf16 or fp16", op, name_of(dtype));
  }
  const std::int64_t tokens = call.hidden.shape[0], width = call.hidden.shape[1], vocab = call.weight.shape[0];
  const std::int64_t losses = call.reduction == LinearCrossEntropy::Reduction::none ? tokens : 1;
  expect(op, "weight", call.weight, dtype, {vocab, width});
  expect(op, "targets", call.targets, DType::i32, {tokens});
  if (call.rows.data != nullptr) expect(op, "rows", call.rows, DType::i32, {call.rows.shape[0]});
  expect(op, "bias", call.bias, dtype, {vocab}, May::be_absent);
  expect(op, "class_weights", call.class_weights, DType::f32, {vocab}, May::be_absent);
  expect(op, "token_weights", call.token_weights, DType::f32, {tokens}, May::be_absent);
  expect(op, "upstream", call.upstream, DType::f32, {losses}, May::be_absent);
  expect(op, "loss", call.loss, DType::f32, {losses}, May::be_absent);
  expect(op, "loss_of_z", call.loss_of_z, DType::f32, {losses}, May::be_absent);
  expect(op, "correct", call.correct, DType::i32, {1}, May::be_absent);
  expect(op, "predicted", call.predicted, DType::i32, {tokens}, May::be_absent);
  expect(op, "dhidden", call.dhidden, dtype, {tokens, width}, May::be_absent);
  expect(op, "dweight", call.dweight, DType::f32, {vocab, width}, May::be_absent);
  expect(op, "dbias", call.dbias, DType::f32, {vocab}, May::be_absent);
  if (!(call.label_smoothing >= 0 && call.label_smoothing < 1)) {
    user_error("{}: label_smoothing: expected at least 0 and below 1, got {}", op, call.label_smoothing);
  }
  if (!(call.softcap >= 0) || call.chunk_rows < 0) {
    user_error("{}: softcap and chunk_rows: expected at least 0, got {} and {}", op, call.softcap, call.chunk_rows);
  }
}

}  // namespace

void Ops::linear_cross_entropy(const LinearCrossEntropy& call) {
  check(call);
  // No rows are not absent rows: a place is all that an empty view needs.
  static std::int32_t no_rows = 0;
  View rows = view(call.rows);
  if (call.rows.rank == 1 && call.rows.shape[0] == 0) rows = View(&no_rows, DType::i32, {0});
  parts_->run([&](Exec& exec) {
    weights::Parameter parameter;
    parameter.shape = Shape{call.weight.shape[0], call.weight.shape[1]};
    parameter.value = view(call.weight);
    parameter.grad = view(call.dweight);
    weights::DenseWeight head(parameter);
    ops::fused_linear_ce(exec, head,
                         {.hidden = view(call.hidden),
                          .targets = view(call.targets),
                          .rows = rows,
                          .bias = view(call.bias),
                          .class_weights = view(call.class_weights),
                          .token_weights = view(call.token_weights),
                          .upstream = view(call.upstream)},
                         {.loss = view(call.loss),
                          .z_loss = view(call.loss_of_z),
                          .correct = view(call.correct),
                          .predicted = view(call.predicted),
                          .dhidden = view(call.dhidden),
                          .dbias = view(call.dbias),
                          .dbias_mode = call.dbias.data != nullptr ? Grad::overwrite : Grad::skip,
                          .head_gradient = call.dweight.data != nullptr},
                         {.label_smoothing = call.label_smoothing,
                          .softcap = call.softcap,
                          .z_loss = call.z_loss,
                          .reduction = reduction_of(call.reduction),
                          .normalizer = call.normalizer,
                          .chunk_tokens = call.chunk_rows});
  });
}

namespace {

// [T, H], and tiles of its rows.
template <class Body>
void for_each_tile(std::int64_t rows, std::int64_t tile, const Body& body) {
  const std::int64_t step = tile > 0 ? tile : std::max<std::int64_t>(rows, 1);
  for (std::int64_t begin = 0; begin < rows; begin += step) body(begin, std::min(begin + step, rows));
}

void check(const SwigluMlp& call) {
  constexpr const char* op = "swiglu_mlp";
  expect_activation(op, "x", call.x, 2);
  expect_activation(op, "gate", call.gate, 2);
  const DType dtype = call.x.dtype;
  const std::int64_t width = call.x.shape[1], inner = call.gate.shape[0];
  expect(op, "gate", call.gate, dtype, {inner, width});
  expect(op, "up", call.up, dtype, {inner, width});
  expect(op, "down", call.down, dtype, {width, inner});
  if (call.tile < 0) user_error("{}: tile: expected at least 0, got {}", op, call.tile);
  expect(op, "gate_up", call.gate_up, dtype, {call.x.shape[0], 2 * inner}, May::be_absent);
}

// Memory for gate and up of a tile, side by side.
View gate_up_of(Exec& exec, const SwigluMlp& call, std::int64_t begin, std::int64_t end) {
  if (call.gate_up.data != nullptr) return view(call.gate_up).slice_rows(begin, end);
  return exec.arena().scratch("gate and up", call.x.dtype, {end - begin, 2 * call.gate.shape[0]});
}

void project(Exec& exec, const SwigluMlp& call, View gate_up, ConstView x) {
  const std::int64_t inner = call.gate.shape[0];
  backend::matmul(exec, gate_up.slice_cols(0, inner), x, Transpose::no, view(call.gate), Transpose::yes);
  backend::matmul(exec, gate_up.slice_cols(inner, 2 * inner), x, Transpose::no, view(call.up), Transpose::yes);
}

}  // namespace

void Ops::swiglu_mlp_forward(const SwigluMlp& call) {
  check(call);
  const std::int64_t tokens = call.x.shape[0], width = call.x.shape[1], inner = call.gate.shape[0];
  expect("swiglu_mlp", "out", call.out, call.x.dtype, {tokens, width});
  parts_->run([&](Exec& exec) {
    for_each_tile(tokens, call.tile, [&](std::int64_t begin, std::int64_t end) {
      const backend::ScratchScope scope(exec.arena());
      const View gate_up = gate_up_of(exec, call, begin, end);
      project(exec, call, gate_up, view(call.x).slice_rows(begin, end));
      const View act = exec.arena().scratch("mlp activation", call.x.dtype, {end - begin, inner});
      ops::swiglu_forward(exec, act, gate_up);
      backend::matmul(exec, view(call.out).slice_rows(begin, end), act, Transpose::no, view(call.down), Transpose::yes);
    });
  });
}

void Ops::swiglu_mlp_backward(const SwigluMlp& call) {
  constexpr const char* op = "swiglu_mlp";
  check(call);
  const DType dtype = call.x.dtype;
  const std::int64_t tokens = call.x.shape[0], width = call.x.shape[1], inner = call.gate.shape[0];
  expect(op, "dout", call.dout, dtype, {tokens, width});
  expect(op, "dx", call.dx, dtype, {tokens, width});
  expect(op, "dgate", call.dgate, DType::f32, {inner, width}, May::be_absent);
  expect(op, "dup", call.dup, DType::f32, {inner, width}, May::be_absent);
  expect(op, "ddown", call.ddown, DType::f32, {width, inner}, May::be_absent);
  parts_->run([&](Exec& exec) {
    for_each_tile(tokens, call.tile, [&](std::int64_t begin, std::int64_t end) {
      const backend::ScratchScope scope(exec.arena());
      const float beta = begin == 0 ? 0.0f : 1.0f;
      const ConstView x = view(call.x).slice_rows(begin, end);
      const ConstView dout = view(call.dout).slice_rows(begin, end);
      const View dx = view(call.dx).slice_rows(begin, end);
      const View gate_up = gate_up_of(exec, call, begin, end);
      // What is not the caller's becomes its own gradient.
      View dgate_up = gate_up;
      if (call.gate_up.data == nullptr) {
        project(exec, call, gate_up, x);
      } else {
        dgate_up = exec.arena().scratch("gate and up gradient", dtype, gate_up.shape());
      }
      {
        const backend::ScratchScope act_scope(exec.arena());
        const View dact = exec.arena().scratch("mlp activation gradient", dtype, {end - begin, inner});
        backend::matmul(exec, dact, dout, Transpose::no, view(call.down), Transpose::no);
        // dact becomes the activation, for down's weight gradient.
        ops::swiglu_backward(exec, dgate_up, dact, dact, gate_up);
        if (call.ddown.data != nullptr) {
          backend::matmul(exec, view(call.ddown), dout, Transpose::yes, dact, Transpose::no, {.beta = beta});
        }
      }
      const View dgate = dgate_up.slice_cols(0, inner), dup = dgate_up.slice_cols(inner, 2 * inner);
      if (call.dgate.data != nullptr) {
        backend::matmul(exec, view(call.dgate), dgate, Transpose::yes, x, Transpose::no, {.beta = beta});
      }
      if (call.dup.data != nullptr) {
        backend::matmul(exec, view(call.dup), dup, Transpose::yes, x, Transpose::no, {.beta = beta});
      }
      backend::matmul(exec, dx, dgate, Transpose::no, view(call.gate), Transpose::no);
      backend::matmul(exec, dx, dup, Transpose::no, view(call.up), Transpose::no, {.beta = 1.0f});
    });
  });
}

namespace {

struct AttentionCall {
  std::shared_ptr<const ops::AttentionRule> rule;
  ops::AttentionTensors tensors;
  ops::AttentionSpec spec;
};

AttentionCall checked(const Attention& call, Device device) {
  constexpr const char* op = "attention";
  expect_activation(op, "q", call.q, 3);
  expect_activation(op, "k", call.k, 3);
  const DType dtype = call.q.dtype;
  const std::int64_t tokens = call.q.shape[0], heads = call.q.shape[1], width = call.q.shape[2];
  const std::int64_t kv_heads = call.k.shape[1], documents = static_cast<std::int64_t>(call.cu_seqlens.size()) - 1;
  expect(op, "k", call.k, dtype, {tokens, kv_heads, width});
  expect(op, "v", call.v, dtype, {tokens, kv_heads, width});
  expect(op, "out", call.out, dtype, {tokens, heads, width});
  expect(op, "lse", call.lse, DType::f32, {tokens, heads});
  if (kv_heads < 1 || heads % kv_heads != 0) {
    user_error("{}: {} query heads cannot share {} key/value heads evenly", op, heads, kv_heads);
  }
  if (documents < 1 || call.cu_seqlens.front() != 0 || call.cu_seqlens.back() != tokens ||
      !std::is_sorted(call.cu_seqlens.begin(), call.cu_seqlens.end())) {
    user_error("{}: cu_seqlens: expected numbers that ascend from 0 to {}, the tokens", op, tokens);
  }
  if (call.window < 0) user_error("{}: window: expected at least 0, got {}", op, call.window);
  expect(op, "sinks", call.sinks, dtype, {heads}, May::be_absent);
  AttentionCall result;
  const bool rules = !call.mask.empty() || !call.score.empty();
  if (rules && call.window > 0) user_error("{}: window: write it into the mask", op);
  if (rules) result.rule = ops::AttentionRule::parse(call.mask, call.score);
  const bool prefixes = rules && result.rule->wants_prefix_lengths(), biases = rules && result.rule->wants_head_bias();
  expect(op, "prefix_lengths", call.prefix_lengths, DType::i32, {documents},
         prefixes ? May::not_be_absent : May::be_absent);
  expect(op, "head_bias", call.head_bias, DType::f32, {heads}, biases ? May::not_be_absent : May::be_absent);
  Tensor places = call.device_cu_seqlens;
  if (device == Device::cpu) {
    places = Tensor(const_cast<std::int32_t*>(call.cu_seqlens.data()), DType::i32, {documents + 1});
  }
  expect(op, "device_cu_seqlens", places, DType::i32, {documents + 1});
  result.tensors = {
      .q = view(call.q), .k = view(call.k), .v = view(call.v), .out = view(call.out), .lse = view(call.lse)};
  result.spec = {.scale = call.scale != 0 ? call.scale : 1.0f / std::sqrt(static_cast<float>(width)),
                 .window = call.window,
                 .cu_seqlens = view(places),
                 .host_cu_seqlens = call.cu_seqlens,
                 .deterministic = call.deterministic,
                 .rule = result.rule.get(),
                 .prefix_lengths = view(call.prefix_lengths),
                 .head_bias = view(call.head_bias),
                 .sinks = view(call.sinks)};
  return result;
}

}  // namespace

void Ops::attention_forward(const Attention& call) {
  const AttentionCall ours = checked(call, parts_->device());
  parts_->run([&](Exec& exec) { ops::attention_forward(exec, ours.tensors, ours.spec); });
}

void Ops::attention_backward(const Attention& call) {
  constexpr const char* op = "attention";
  const AttentionCall ours = checked(call, parts_->device());
  const DType dtype = call.q.dtype;
  expect(op, "dout", call.dout, dtype, view(call.q).shape());
  expect(op, "dq", call.dq, dtype, view(call.q).shape());
  expect(op, "dk", call.dk, dtype, view(call.k).shape());
  expect(op, "dv", call.dv, dtype, view(call.k).shape());
  expect(op, "dsinks", call.dsinks, DType::f32, {call.q.shape[1]}, May::be_absent);
  parts_->run([&](Exec& exec) {
    ops::attention_backward(exec,
                            {.dq = view(call.dq),
                             .dk = view(call.dk),
                             .dv = view(call.dv),
                             .dsinks = view(call.dsinks),
                             .dsinks_mode = call.dsinks.data != nullptr ? Grad::overwrite : Grad::skip},
                            view(call.dout), ours.tensors, ours.spec);
  });
}

}  // namespace inlay
