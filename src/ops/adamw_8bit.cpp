#include "ops/adamw_8bit.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_moments(std::string_view op, View grad, const Moments8& moments, const AdamWSettings& settings) {
  const auto& [m, v, m_scale, v_scale] = moments;
  check_dtype(op, "grad", grad, DType::f32);
  INLAY_ASSERT(grad.rank() == 2, "{}: grad is {}, expected [R, C]", op, grad.shape().str());
  for (const ConstView& view : {ConstView(m), ConstView(v)}) {
    check_shape(op, "a moment", view, grad.shape());
    check_dtype(op, "a moment", view, DType::u8);
  }
  for (const ConstView& view : {ConstView(m_scale), ConstView(v_scale)}) {
    check_shape(op, "a scale", view, {grad.dim(0), moment_blocks(grad.dim(1))});
    check_dtype(op, "a scale", view, DType::f32);
  }
  for (const ConstView& view : {ConstView(grad), ConstView(m), ConstView(v), ConstView(m_scale), ConstView(v_scale)}) {
    INLAY_ASSERT(view.contiguous(), "{}: a strided tensor", op);
  }
  INLAY_ASSERT(settings.step >= 1, "{}: step {}, the first is 1", op, settings.step);
}

}  // namespace

void adamw_update_8bit(Exec& exec, View grad, const Moments8& moments, ConstView grad_scale,
                       const AdamWSettings& settings) {
  check_moments("adamw_update_8bit", grad, moments, settings);
  const auto& [m, v, m_scale, v_scale] = moments;
  exec.count_bytes({grad, grad, m, m, v, v, m_scale, m_scale, v_scale, v_scale});
  if (exec.planning() || grad.size() == 0) return;
  const AdamWFactors factors(settings);
  if (exec.on_cuda()) return cuda::adamw_update_8bit(exec, grad, moments, grad_scale, factors);
  cpu::kernels().adamw_update_8bit(exec, grad, moments, grad_scale, factors);
}

void adamw_step_8bit(Exec& exec, View value, View low, View grad, const Moments8& moments, ConstView grad_scale,
                     const AdamWSettings& settings) {
  constexpr std::string_view op = "adamw_step_8bit";
  check_moments(op, grad, moments, settings);
  check_shape(op, "value", value, grad.shape());
  const bool whole = value.dtype() == DType::bf16 || value.dtype() == DType::f32;
  INLAY_ASSERT(whole && value.contiguous() && low.contiguous(), "{}: value is {} or strided", op,
               name_of(value.dtype()));
  INLAY_ASSERT((value.dtype() == DType::bf16) == static_cast<bool>(low),
               "{}: bf16 weights, and only they, have a low half", op);
  if (low) {
    check_shape(op, "low", low, value.shape());
    check_dtype(op, "low", low, DType::i16);
  }
  const bool at_once = exec.on_cuda() && grad.dim(1) % cuda::moments_together == 0;
  if (!at_once) {
    adamw_update_8bit(exec, grad, moments, grad_scale, settings);
    return add_update(exec, value, low, grad, settings);
  }
  const auto& [m, v, m_scale, v_scale] = moments;
  exec.count_bytes({grad, m, m, v, v, m_scale, m_scale, v_scale, v_scale, value, value, low, low});
  if (exec.planning() || grad.size() == 0) return;
  cuda::adamw_step_8bit(exec, value, low, grad, moments, grad_scale, AdamWFactors(settings));
}

}  // namespace inlay::ops
