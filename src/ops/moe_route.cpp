#include "ops/moe_route.h"

#include <algorithm>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_logits(std::string_view op, const ConstView& logits) {
  check_dtype(op, "logits", logits, DType::f32);
  INLAY_ASSERT(logits.rank() == 2 && logits.dim(1) >= 1 && logits.dim(1) <= most_experts,
               "{}: logits are {}, expected [T, E] with at most {} experts", op, logits.shape().str(), most_experts);
}

void check_experts(std::string_view op, const ConstView& experts, const ConstView& logits) {
  check_logits(op, logits);
  check_dtype(op, "experts", experts, DType::i32);
  INLAY_ASSERT(experts.rank() == 2 && experts.contiguous() && experts.dim(0) == logits.dim(0) && experts.dim(1) >= 1 &&
                   experts.dim(1) <= std::min(logits.dim(1), most_choices),
               "{}: experts are {} beside logits of {}", op, experts.shape().str(), logits.shape().str());
}

void check_pairs(std::string_view op, std::string_view name, const ConstView& view, const ConstView& experts) {
  check_shape(op, name, view, experts.shape());
  check_dtype(op, name, view, DType::f32);
  INLAY_ASSERT(view.contiguous(), "{}: {} is strided", op, name);
}

void check_balance(std::string_view op, const Balance& balance, std::int64_t experts) {
  check_shape(op, "assigned", balance.assigned, {experts});
  check_dtype(op, "assigned", balance.assigned, DType::i32);
  check_shape(op, "probability", balance.probability, {experts});
  check_dtype(op, "probability", balance.probability, DType::f32);
}

}  // namespace

void moe_route(Exec& exec, View experts, View weights, ConstView logits, RouteWeights kind) {
  constexpr std::string_view op = "moe_route";
  check_experts(op, experts, logits);
  check_pairs(op, "weights", weights, experts);
  exec.count_bytes({logits, experts, weights});
  if (exec.planning() || logits.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_route(exec, experts, weights, logits, kind);
  cpu::kernels().moe_route(exec, experts, weights, logits, kind);
}

void moe_balance_add(Exec& exec, const Balance& balance, ConstView logits, ConstView experts) {
  constexpr std::string_view op = "moe_balance_add";
  check_experts(op, experts, logits);
  check_balance(op, balance, logits.dim(1));
  const ScratchScope scope(exec.arena());
  const std::int64_t blocks = std::min<std::int64_t>(logits.dim(0), 64);
  const View scratch = exec.arena().scratch("partial sums of probabilities", DType::f32, {blocks, logits.dim(1)});
  exec.count_bytes({logits});
  if (exec.planning() || logits.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_balance_add(exec, balance, logits, experts, scratch);
  cpu::kernels().moe_balance_add(exec, balance, logits, experts, scratch);
}

void moe_balance_loss(Exec& exec, View loss, const Balance& balance, double rows, double factor) {
  constexpr std::string_view op = "moe_balance_loss";
  check_shape(op, "loss", loss, {1});
  check_dtype(op, "loss", loss, DType::f32);
  INLAY_ASSERT(balance.assigned.rank() == 1 && rows > 0, "{}: assigned is {}, over {} rows", op,
               balance.assigned.shape().str(), rows);
  check_balance(op, balance, balance.assigned.dim(0));
  if (exec.planning()) return;
  const auto scale = static_cast<float>(factor * static_cast<double>(balance.assigned.dim(0)) / (rows * rows));
  if (exec.on_cuda()) return cuda::moe_balance_loss(exec, loss, balance, scale);
  cpu::kernels().moe_balance_loss(exec, loss, balance, scale);
}

void moe_route_backward(Exec& exec, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind) {
  constexpr std::string_view op = "moe_route_backward";
  check_experts(op, experts, logits);
  check_pairs(op, "dweights", grads.dweights, experts);
  check_activation(op, "dlogits", dlogits);
  check_shape(op, "dlogits", dlogits, logits.shape());
  if (grads.assigned) {
    check_shape(op, "assigned", grads.assigned, {logits.dim(1)});
    check_dtype(op, "assigned", grads.assigned, DType::i32);
  }
  exec.count_bytes({logits, dlogits});
  if (exec.planning() || logits.size() == 0) return;
  if (exec.on_cuda()) return cuda::moe_route_backward(exec, dlogits, grads, experts, logits, kind);
  cpu::kernels().moe_route_backward(exec, dlogits, grads, experts, logits, kind);
}

}  // namespace inlay::ops
