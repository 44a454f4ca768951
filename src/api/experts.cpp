#include <algorithm>

#include "api/ops_workspace.h"
#include "ops/expert_glu.h"
#include "ops/moe_route.h"
#include "weights/dense.h"
#include "weights/experts.h"

// A mixture of experts as model/moe_block has it, without the norm before it and the residual around it.
namespace inlay {

using api::expect;
using api::expect_activation;
using api::May;
using api::view;
using backend::Exec;
using backend::Grad;
using backend::ScratchScope;

namespace {

constexpr const char* op = "experts";

void check(const MixtureOfExperts& call) {
  expect_activation(op, "x", call.x, 2);
  expect_activation(op, "router", call.router, 2);
  expect_activation(op, "down", call.down, 3);
  const DType dtype = call.x.dtype;
  const std::int64_t width = call.x.shape[1], count = call.router.shape[0], inner = call.down.shape[2];
  expect(op, "router", call.router, dtype, {count, width});
  expect(op, "gate_up", call.gate_up, dtype, {count, 2 * inner, width});
  expect(op, "down", call.down, dtype, {count, width, inner});
  if (call.chosen < 1 || call.chosen > std::min(count, ops::most_choices)) {
    user_error("{}: chosen: expected 1 to {}, got {}", op, std::min(count, ops::most_choices), call.chosen);
  }
  if (call.tile < 0) user_error("{}: tile: expected at least 0, got {}", op, call.tile);
}

// A matrix of every expert, [E, rows, columns].
std::vector<weights::Parameter> parameters_of(const Tensor& value, const Tensor& gradient) {
  std::vector<weights::Parameter> result(static_cast<std::size_t>(value.shape[0]));
  for (std::int64_t e = 0; e < value.shape[0]; ++e) {
    weights::Parameter& p = result[static_cast<std::size_t>(e)];
    p.shape = Shape{value.shape[1], value.shape[2]};
    p.value = view(value).slice_rows(e, e + 1).reshape(p.shape);
    if (gradient.data != nullptr) p.grad = view(gradient).slice_rows(e, e + 1).reshape(p.shape);
  }
  return result;
}

// The layer, over the caller's weights and gradients, for one pass.
struct Layer {
  explicit Layer(Exec& exec, const MixtureOfExperts& c)
      : call(c),
        gate_up_parameters(parameters_of(c.gate_up, c.dgate_up)),
        down_parameters(parameters_of(c.down, c.ddown)),
        router(router_parameter),
        gate_up(exec, gate_up_parameters, make),
        down(exec, down_parameters, make) {
    router_parameter.shape = Shape{c.router.shape[0], c.router.shape[1]};
    router_parameter.value = view(c.router);
    router_parameter.grad = view(c.drouter);
  }

  // What a tile's rows go through up to gate and up.
  struct Tile {
    View logits, experts, weights, sorted, gate_up;
    ops::ExpertOrder order;
  };
  Tile projected(Exec& exec, ConstView x, const ops::Call& where) {
    Arena& arena = exec.arena();
    const std::int64_t count = call.router.shape[0], inner = call.down.shape[2];
    const Shape pairs{x.dim(0), call.chosen};
    Tile t{.logits = arena.scratch("router logits", DType::f32, {x.dim(0), count}),
           .experts = arena.scratch("chosen experts", DType::i32, pairs),
           .weights = arena.scratch("router weights", DType::f32, pairs),
           .sorted = arena.scratch("rows of experts", x.dtype(), {pairs.size(), x.dim(1)}),
           .gate_up = arena.scratch("gate and up", x.dtype(), {pairs.size(), 2 * inner}),
           .order = {.offsets = arena.scratch("expert offsets", DType::i32, {count + 1}),
                     .pairs = arena.scratch("rows by expert", DType::i32, {pairs.size()}),
                     .rows = arena.scratch("rows of tokens", DType::i32, pairs)}};
    router.forward(exec, t.logits, Grad::overwrite, x);  // in fp32: which comes first must not hang on rounding
    ops::moe_route(exec, t.experts, t.weights, t.logits, weighting());
    ops::moe_sort(exec, t.order, t.experts);
    ops::moe_gather(exec, t.sorted, x, t.order);
    gate_up.forward(exec, t.gate_up, t.sorted, t.order.offsets, where);
    return t;
  }
  ops::RouteWeights weighting() const {
    return call.normalized ? ops::RouteWeights::softmax_of_chosen : ops::RouteWeights::chosen_of_softmax;
  }
  static ops::ExpertRows rows(const Tile& t) { return {.bias = {}, .experts = t.experts, .order = t.order}; }
  static std::unique_ptr<weights::Weight> make(Exec&, weights::Parameter& p) {
    return std::make_unique<weights::DenseWeight>(p);
  }
  std::int64_t tile_rows() const { return call.tile > 0 ? call.tile : std::max<std::int64_t>(call.x.shape[0], 1); }

  const MixtureOfExperts& call;
  weights::Parameter router_parameter;
  std::vector<weights::Parameter> gate_up_parameters, down_parameters;
  weights::DenseWeight router;
  weights::ExpertWeights gate_up, down;
};

}  // namespace

void Ops::experts_forward(const MixtureOfExperts& call) {
  check(call);
  const std::int64_t tokens = call.x.shape[0], inner = call.down.shape[2];
  expect(op, "out", call.out, call.x.dtype, {tokens, call.x.shape[1]});
  parts_->run([&](Exec& exec) {
    Layer layer(exec, call);
    for (std::int64_t begin = 0; begin < tokens; begin += layer.tile_rows()) {
      const std::int64_t end = std::min(begin + layer.tile_rows(), tokens);
      const ScratchScope scope(exec.arena());
      const ops::Call where{.first_row = begin * call.chosen};
      const Layer::Tile t = layer.projected(exec, view(call.x).slice_rows(begin, end), where);
      const View act = exec.arena().scratch("mlp activation", call.x.dtype, {t.sorted.dim(0), inner});
      ops::expert_glu_forward(exec, act, t.gate_up, Layer::rows(t));
      const View answers = t.sorted;  // has served; its memory takes the experts' answers
      layer.down.forward(exec, answers, act, t.order.offsets, where);
      ops::moe_combine(exec, view(call.out).slice_rows(begin, end), {.y = answers, .weights = t.weights}, t.order);
    }
  });
}

void Ops::experts_backward(const MixtureOfExperts& call) {
  check(call);
  const DType dtype = call.x.dtype;
  const std::int64_t tokens = call.x.shape[0], width = call.x.shape[1], inner = call.down.shape[2];
  expect(op, "dout", call.dout, dtype, {tokens, width});
  expect(op, "dx", call.dx, dtype, {tokens, width});
  expect(op, "drouter", call.drouter, DType::f32, view(call.router).shape(), May::be_absent);
  expect(op, "dgate_up", call.dgate_up, DType::f32, view(call.gate_up).shape(), May::be_absent);
  expect(op, "ddown", call.ddown, DType::f32, view(call.down).shape(), May::be_absent);
  parts_->run([&](Exec& exec) {
    Layer layer(exec, call);
    Arena& arena = exec.arena();
    for (std::int64_t begin = 0; begin < tokens; begin += layer.tile_rows()) {
      const std::int64_t end = std::min(begin + layer.tile_rows(), tokens);
      const ScratchScope scope(arena);
      const ops::Call where{.first_row = begin * call.chosen};
      const ConstView x = view(call.x).slice_rows(begin, end);
      const View dx = view(call.dx).slice_rows(begin, end);
      const Layer::Tile t = layer.projected(exec, x, where);
      const ConstView offsets = t.order.offsets;
      const View dweights = arena.scratch("router weight gradients", DType::f32, t.weights.shape());
      {
        const ScratchScope answer_scope(arena);
        const View danswers = arena.scratch("gradient of the experts' answers", dtype, t.sorted.shape());
        ops::moe_combine_backward(exec, danswers, dweights, view(call.dout).slice_rows(begin, end), {}, t.order);
        const View dact = arena.scratch("mlp activation gradient", dtype, {t.sorted.dim(0), inner});
        layer.down.backward_input(exec, dact, danswers, offsets, where);
        // gate_up becomes its own gradient; dact becomes the weighted activation, for down's weight gradient.
        ops::expert_glu_backward(exec, {.dgate_up = t.gate_up, .act = dact, .dweights = dweights}, dact, t.gate_up,
                                 t.weights, Layer::rows(t));
        if (call.ddown.data != nullptr) layer.down.accumulate(exec, danswers, dact, offsets, where);
      }
      const View dsorted = t.sorted;  // will have served: its memory takes the gradient
      if (call.dgate_up.data != nullptr) {
        layer.gate_up.backward(exec, dsorted, t.gate_up, t.sorted, offsets, where);
      } else {
        layer.gate_up.backward_input(exec, dsorted, t.gate_up, offsets, where);
      }
      ops::moe_combine(exec, dx, {.y = dsorted}, t.order);
      const View dlogits = arena.scratch("router gradient", dtype, t.logits.shape());
      ops::moe_route_backward(exec, dlogits, {.dweights = dweights}, t.experts, t.logits, layer.weighting());
      layer.router.accumulate(exec, dlogits, x);
      layer.router.backward_input(exec, dx, Grad::accumulate, dlogits);
    }
  });
}

}  // namespace inlay
