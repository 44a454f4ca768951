#include "model/moe_block.h"

#include <optional>

#include "model/norm_grads.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace inlay::model {

using backend::Grad;
using backend::ScratchScope;
using ops::Fp8Forms;
using ops::Fp8Role;
using ops::Fp8Use;
using weights::GroupOperands;

namespace {

// Which forms of an operand are read: for products with the matrices, for their gradients.
std::optional<Fp8Use> use_of(bool products, bool gradients) {
  if (products && gradients) return Fp8Use::both;
  if (products) return Fp8Use::rows;
  if (gradients) return Fp8Use::columns;
  return std::nullopt;
}

Fp8Forms scratch_of(Exec& exec, std::string_view name, const std::optional<GroupOperands>& operands, Fp8Role role,
                    std::optional<Fp8Use> use, std::int64_t rows, std::int64_t cols) {
  if (!operands || !use) return {};
  return ops::scratch_fp8(exec, name, operands->settings, role, *use, rows, cols);
}

// The tensor itself where it is read, beside its forms.
template <class AnyView>
AnyView plain_of(const std::optional<GroupOperands>& operands, const AnyView& view) {
  return !operands || operands->plain ? view : AnyView();
}

ops::Call reading(ops::Call call, const Fp8Forms* x, const Fp8Forms* dy = nullptr) {
  call.x = x;
  call.dy = dy;
  return call;
}

}  // namespace

MoeBlock::MoeBlock(Exec& exec, const ModelConfig& config, MoeParameters& parameters,
                   const weights::WeightFactory& make_weight, const RouterBalance& balance)
    : config_(config),
      parameters_(parameters),
      balance_(balance),
      router_(make_weight(exec, parameters.router)),
      gate_up_(exec, parameters.gate_up, make_weight),
      down_(exec, parameters.down, make_weight) {
  INLAY_ASSERT(config.input_norms && !config.output_norms && config.residual_scale == 1 && config.norm_offset == 0,
               "experts of {} would need norms or factors that they do not have yet", config.model_type);
}

ops::RouteWeights MoeBlock::weighting() const {
  return config_.experts.normalized ? ops::RouteWeights::softmax_of_chosen : ops::RouteWeights::chosen_of_softmax;
}

ops::ExpertRows MoeBlock::rows(const Routing& routing) const {
  return {.kind = config_.experts.clamped_glu ? ops::Glu::clamped : ops::Glu::silu,
          .bias = parameters_.gate_up_bias.value,
          .experts = routing.experts,
          .order = routing.order};
}

MoeBlock::Routing MoeBlock::take_routing(Exec& exec, std::int64_t begin, std::int64_t end, const Saved& saved) const {
  Arena& arena = exec.arena();
  const Shape pairs{end - begin, config_.experts.chosen};
  const bool kept = !saved.experts.absent();
  return {.experts = kept ? saved.experts.slice_rows(begin, end) : arena.scratch("chosen experts", DType::i32, pairs),
          .weights = kept ? saved.weights.slice_rows(begin, end) : arena.scratch("router weights", DType::f32, pairs),
          .order = {.offsets = arena.scratch("expert offsets", DType::i32, {config_.experts.count + 1}),
                    .pairs = arena.scratch("rows by expert", DType::i32, {pairs.size()}),
                    .rows = arena.scratch("rows of tokens", DType::i32, pairs)}};
}

// A row's number is its pair's, so that it does not hang on the tile that the row is sorted in.
ops::Call MoeBlock::call_of(const Routing& routing, std::int64_t begin) const {
  return {.first_row = begin * config_.experts.chosen, .rows = routing.order.pairs};
}

// In fp32, whatever the model computes in: which expert comes first must not hang on rounding.
View MoeBlock::router_logits(Exec& exec, ConstView norm, std::int64_t row) {
  Arena& arena = exec.arena();
  View logits = arena.scratch("router logits", DType::f32, {norm.dim(0), config_.experts.count});
  router_->forward(exec, logits, Grad::overwrite, norm, {.first_row = row});
  if (config_.experts.router_bias) {
    const ScratchScope scope(arena);
    View bias = arena.scratch("router bias", DType::f32, {config_.experts.count});
    ops::cast(exec, bias, parameters_.router_bias.value);
    ops::add_bias(exec, logits, bias);
  }
  return logits;
}

void MoeBlock::gather(Exec& exec, View sorted, const Fp8Forms& forms, ConstView norm, const Routing& routing) const {
  const auto operands = gate_up_.fp8();
  if (operands && !operands->plain) return ops::moe_gather_fp8(exec, forms, sorted, norm, routing.order);
  ops::moe_gather(exec, sorted, norm, routing.order);
  ops::quantise_fp8(exec, forms, sorted);
}

void MoeBlock::multiply_down(Exec& exec, View answers, ConstView gate_up, const Routing& routing,
                             const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  const Shape shape{gate_up.dim(0), config_.experts.intermediate};
  const auto operands = down_.fp8();
  const Fp8Forms forms = scratch_of(exec, "mlp activation", operands, Fp8Role::input, Fp8Use::rows, shape[0], shape[1]);
  View act;
  if (operands && !operands->plain) {
    ops::expert_glu_forward_fp8(exec, forms, gate_up, rows(routing));
  } else {
    act = exec.arena().scratch("mlp activation", gate_up.dtype(), shape);
    ops::expert_glu_forward(exec, act, gate_up, rows(routing));
    ops::quantise_fp8(exec, forms, act);
  }
  down_.forward(exec, answers, act, routing.order.offsets, reading(call, &forms));
}

void MoeBlock::forward(Exec& exec, View out, View residual, ConstView x, const LayerPolicy& policy, std::int64_t tile,
                       Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t tokens = x.dim(0), chosen = config_.experts.chosen, width = config_.experts.intermediate;
  const DType dtype = x.dtype();
  if (policy.keeps(Activation::mlp_norm)) {
    saved.norm = arena.keep(MemoryClass::activations, "mlp norm", dtype, x.shape());
  }
  if (policy.keeps(Activation::gate_up)) {
    saved.gate_up = arena.keep(MemoryClass::activations, "gate and up", dtype, {tokens * chosen, 2 * width});
  }
  if (!saved.gate_up.absent()) {
    saved.experts = arena.keep(MemoryClass::activations, "chosen experts", DType::i32, {tokens, chosen});
    saved.weights = arena.keep(MemoryClass::activations, "router weights", DType::f32, {tokens, chosen});
  }
  for_each_tile(tokens, tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const std::int64_t pairs = (end - begin) * chosen;
    const View stream = residual.slice_rows(begin, end);
    const Routing routing = take_routing(exec, begin, end, saved);
    const ops::Call call = call_of(routing, begin);
    View sorted = arena.scratch("rows of experts", dtype, {pairs, config_.hidden});
    View gate_up = saved.gate_up.absent() ? arena.scratch("gate and up", dtype, {pairs, 2 * width})
                                          : saved.gate_up.slice_rows(begin * chosen, end * chosen);
    {
      const ScratchScope input_scope(arena);
      const auto operands = gate_up_.fp8();
      const Fp8Forms forms =
          scratch_of(exec, "rows of experts", operands, Fp8Role::input, Fp8Use::rows, pairs, config_.hidden);
      {
        const ScratchScope norm_scope(arena);
        View norm =
            saved.norm.absent() ? arena.scratch("mlp norm", dtype, stream.shape()) : saved.norm.slice_rows(begin, end);
        ops::residual_rms_norm_forward(exec, norm, stream, x.slice_rows(begin, end), stream, parameters_.norm.value,
                                       config_.norm_eps);
        const View logits = router_logits(exec, norm, begin);
        ops::moe_route(exec, routing.experts, routing.weights, logits, weighting());
        if (balance_.counting) ops::moe_balance_add(exec, balance_.sums, logits, routing.experts);
        ops::moe_sort(exec, routing.order, routing.experts);
        gather(exec, sorted, forms, norm, routing);
      }
      gate_up_.forward(exec, gate_up, plain_of(operands, sorted), routing.order.offsets, reading(call, &forms));
    }
    const View answers = sorted;  // has served; its memory takes the experts' answers
    multiply_down(exec, answers, gate_up, routing, call);
    ops::moe_combine(exec, out.slice_rows(begin, end),
                     {.y = answers,
                      .weights = routing.weights,
                      .bias = parameters_.down_bias.value,
                      .experts = routing.experts,
                      .residual = stream},
                     routing.order);
  });
}

// dnorm += through the router, and the router's own gradients.
void MoeBlock::backward_router(Exec& exec, View dnorm, ConstView dweights, ConstView norm, ConstView logits,
                               const Routing& routing, std::int64_t row) {
  const ScratchScope scope(exec.arena());
  View dlogits = exec.arena().scratch("router gradient", norm.dtype(), logits.shape());
  ops::RouteGrads grads = {.dweights = dweights};
  if (balance_.sums.assigned) {
    grads.assigned = balance_.sums.assigned;
    grads.balance_factor = balance_.factor;
  }
  ops::moe_route_backward(exec, dlogits, grads, routing.experts, logits, weighting());
  if (config_.experts.router_bias) {
    weights::Parameter& bias = parameters_.router_bias;
    ops::bias_backward(exec, bias.grad, bias.next_grad_mode(), dlogits);
  }
  router_->accumulate(exec, dlogits, norm, {.first_row = row});
  router_->backward_input(exec, dnorm, Grad::accumulate, dlogits, {.first_row = row});
}

void MoeBlock::backward(Exec& exec, View grad, ConstView residual, std::int64_t tile, const Saved& saved) {
  Arena& arena = exec.arena();
  const std::int64_t chosen = config_.experts.chosen, width = config_.experts.intermediate;
  for_each_tile(residual.dim(0), tile, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    const std::int64_t pairs = (end - begin) * chosen;
    const ConstView stream = residual.slice_rows(begin, end);
    const View dstream = grad.slice_rows(begin, end);
    const DType dtype = stream.dtype();

    View norm =
        saved.norm.absent() ? arena.scratch("mlp norm", dtype, stream.shape()) : saved.norm.slice_rows(begin, end);
    const Routing routing = take_routing(exec, begin, end, saved);
    const ops::Call call = call_of(routing, begin);
    std::optional<backend::CostScope> again(std::in_place, exec, backend::StepPart::recompute);
    if (saved.norm.absent()) ops::rms_norm_forward(exec, norm, stream, parameters_.norm.value, config_.norm_eps);
    const View logits = router_logits(exec, norm, begin);
    if (saved.experts.absent()) ops::moe_route(exec, routing.experts, routing.weights, logits, weighting());
    ops::moe_sort(exec, routing.order, routing.experts);
    const ConstView offsets = routing.order.offsets;
    View sorted = arena.scratch("rows of experts", dtype, {pairs, config_.hidden});
    const auto up = gate_up_.fp8(), down = down_.fp8();
    const Fp8Forms sorted8 = scratch_of(exec, "rows of experts", up, Fp8Role::input,
                                        use_of(saved.gate_up.absent(), up && up->gradients), pairs, config_.hidden);
    gather(exec, sorted, sorted8, norm, routing);
    View gate_up = saved.gate_up.absent() ? arena.scratch("gate and up", dtype, {pairs, 2 * width})
                                          : saved.gate_up.slice_rows(begin * chosen, end * chosen);
    if (saved.gate_up.absent()) {
      gate_up_.forward(exec, gate_up, plain_of(up, sorted), offsets, reading(call, &sorted8));
    }
    again.reset();

    View dweights = arena.scratch("router weight gradients", DType::f32, {end - begin, chosen});
    const Fp8Forms dgate_up8 = scratch_of(exec, "gate and up gradient", up, Fp8Role::gradient,
                                          use_of(true, up && up->gradients), pairs, 2 * width);
    {
      const ScratchScope answer_scope(arena);
      View danswers = arena.scratch("gradient of the experts' answers", dtype, {pairs, config_.hidden});
      const bool coded = down && down->gradients, plainly = !down || down->plain;
      const Fp8Forms danswers8 = scratch_of(exec, "gradient of the experts' answers", down, Fp8Role::gradient,
                                            use_of(true, coded), pairs, config_.hidden);
      const Fp8Forms act8 =
          scratch_of(exec, "mlp activation", down, Fp8Role::input, use_of(false, coded), pairs, width);
      const ops::Combine bias{.bias = parameters_.down_bias.value, .experts = routing.experts};
      if (plainly) {
        ops::moe_combine_backward(exec, danswers, dweights, dstream, bias, routing.order);
        ops::quantise_fp8(exec, danswers8, danswers);
      } else {
        ops::moe_combine_backward_fp8(exec, danswers8, danswers, dweights, dstream, bias, routing.order);
      }
      View dact = arena.scratch("mlp activation gradient", dtype, {pairs, width});
      down_.backward_input(exec, dact, plain_of(down, danswers), offsets, reading(call, nullptr, &danswers8));
      // gate_up becomes its own gradient; dact becomes the weighted activation, for down's weight gradient.
      ops::ExpertGluForms forms{.dgate_up = dgate_up8, .act = act8};
      if (config_.experts.bias) {
        forms.dbias = parameters_.gate_up_bias.grad;
        forms.dbias_mode = parameters_.gate_up_bias.next_grad_mode();
      }
      const View act = plain_of(down, dact);
      ops::expert_glu_backward_fp8(exec, forms, {.dgate_up = plain_of(up, gate_up), .act = act, .dweights = dweights},
                                   dact, gate_up, routing.weights, rows(routing));
      down_.accumulate(exec, plain_of(down, danswers), act, offsets, reading(call, &act8, &danswers8));
      if (config_.experts.bias) {
        weights::Parameter& p = parameters_.down_bias;
        const Grad mode = p.next_grad_mode();
        if (plainly) {
          ops::moe_bias_backward(exec, p.grad, mode, danswers, routing.weights, routing.order);
        } else {
          ops::moe_bias_backward(exec, p.grad, mode, dstream, routing.weights, routing.order, ops::RowsOf::tokens);
        }
      }
    }
    const View dsorted = sorted;  // will have served: its memory takes the gradient
    gate_up_.backward(exec, dsorted, plain_of(up, gate_up), plain_of(up, sorted), offsets,
                      reading(call, &sorted8, &dgate_up8));
    View dnorm = arena.scratch("mlp norm gradient", dtype, stream.shape());
    ops::moe_combine(exec, dnorm, {.y = dsorted}, routing.order);
    backward_router(exec, dnorm, dweights, norm, logits, routing, begin);
    ops::rms_norm_backward(exec, norm_grads(dstream, Grad::accumulate, parameters_.norm), dnorm, stream,
                           parameters_.norm.value, config_.norm_eps);
  });
}

}  // namespace inlay::model
