#include "ops/schedule_free.h"

#include <cmath>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check(std::string_view op, const ScheduleFreeState& state) {
  const auto& [value, low, z, v] = state;
  const bool halves = value.dtype() == DType::bf16;
  INLAY_ASSERT(halves || value.dtype() == DType::f32, "{}: value is {}", op, name_of(value.dtype()));
  INLAY_ASSERT(halves == !low.absent(), "{}: low is {} for a value in {}", op, low.absent() ? "absent" : "there",
               name_of(value.dtype()));
  if (halves) {
    check_shape(op, "low", low, value.shape());
    check_dtype(op, "low", low, DType::i16);
  }
  for (const ConstView& view : {ConstView(z), ConstView(v)}) {
    check_shape(op, "z or v", view, value.shape());
    check_dtype(op, "z or v", view, DType::f32);
  }
  for (const ConstView& view : {ConstView(value), ConstView(low), ConstView(z), ConstView(v)}) {
    INLAY_ASSERT(view.absent() || view.contiguous(), "{}: a strided tensor", op);
  }
}

}  // namespace

ScheduleFreeFactors::ScheduleFreeFactors(const ScheduleFreeSettings& s)
    : beta2(static_cast<float>(s.beta2)),
      v_rate(static_cast<float>(1 - s.beta2)),
      v_root(static_cast<float>(std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step))))),
      eps(static_cast<float>(s.eps)),
      decay(static_cast<float>(s.weight_decay)),
      back(static_cast<float>(1 - 1 / s.beta1)),
      lr(static_cast<float>(s.lr)),
      share(static_cast<float>(s.share)) {}

void schedule_free_begin(Exec& exec, const ScheduleFreeState& state, double beta1, bool first) {
  check("schedule_free_begin", state);
  exec.count_bytes({state.value, state.value, state.low, state.low, state.z});
  if (exec.planning() || state.value.size() == 0) return;
  const auto ahead = static_cast<float>(1 - beta1);
  if (exec.on_cuda()) return cuda::schedule_free_begin(exec, state, ahead, first);
  cpu::kernels().schedule_free_begin(exec, state, ahead, first);
}

void schedule_free_step(Exec& exec, const ScheduleFreeState& state, ConstView grad, ConstView grad_scale,
                        const ScheduleFreeSettings& settings) {
  constexpr std::string_view op = "schedule_free_step";
  check(op, state);
  check_shape(op, "grad", grad, state.value.shape());
  check_dtype(op, "grad", grad, DType::f32);
  if (grad_scale) {
    check_shape(op, "grad_scale", grad_scale, {1});
    check_dtype(op, "grad_scale", grad_scale, DType::f32);
  }
  INLAY_ASSERT(settings.step >= 1 && grad.contiguous(), "{}: step {} (the first is 1), or a strided gradient", op,
               settings.step);
  INLAY_ASSERT(settings.beta1 > 0, "{}: beta1 is {}", op, settings.beta1);
  exec.count_bytes({grad, state.value, state.value, state.low, state.low, state.z, state.z, state.v, state.v});
  if (exec.planning() || grad.size() == 0) return;
  const ScheduleFreeFactors factors(settings);
  if (exec.on_cuda()) return cuda::schedule_free_step(exec, state, grad, grad_scale, factors);
  cpu::kernels().schedule_free_step(exec, state, grad, grad_scale, factors);
}

}  // namespace inlay::ops
