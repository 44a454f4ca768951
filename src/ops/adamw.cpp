#include "ops/adamw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/kernels.h"

namespace inlay::ops {

AdamWFactors::AdamWFactors(const AdamWSettings& settings)
    : decay(static_cast<float>(1.0 - settings.lr * settings.weight_decay)),
      m_rate(static_cast<float>(1.0 - settings.beta1)),
      beta2(static_cast<float>(settings.beta2)),
      v_rate(static_cast<float>(1.0 - settings.beta2)),
      step_size(static_cast<float>(settings.lr / (1.0 - std::pow(settings.beta1, static_cast<double>(settings.step))))),
      v_root(static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(settings.step))))),
      eps(static_cast<float>(settings.eps)) {}

namespace {

void check_step(const AdamWState& state, ConstView grad, ConstView grad_scale, const AdamWSettings& settings) {
  constexpr std::string_view op = "adamw_step";
  const auto& [value, low, m, v] = state;
  check_activation(op, "value", value);
  check_activation(op, "m", m);
  check_activation(op, "grad", grad);
  check_dtype(op, "v", v, m.dtype());
  for (const ConstView& view : {ConstView(m), ConstView(v), grad}) check_shape(op, "a tensor", view, value.shape());
  INLAY_ASSERT(value.contiguous() && m.contiguous() && v.contiguous() && grad.contiguous(), "{}: a strided tensor", op);
  INLAY_ASSERT((value.dtype() == DType::bf16) == static_cast<bool>(low),
               "{}: bf16 weights, and only they, have a low half", op);
  if (low) {
    check_shape(op, "low", low, value.shape());
    check_dtype(op, "low", low, DType::i16);
    INLAY_ASSERT(low.contiguous(), "{}: low is strided", op);
  }
  if (grad_scale) {
    check_shape(op, "grad_scale", grad_scale, {1});
    check_dtype(op, "grad_scale", grad_scale, DType::f32);
  }
  INLAY_ASSERT(settings.step >= 1, "{}: step {}, the first is 1", op, settings.step);
}

void count_step(Exec& exec, const AdamWState& state, ConstView grad) {
  const auto& [value, low, m, v] = state;
  exec.count_bytes({grad, value, value, low, low, m, m, v, v});
}

}  // namespace

void adamw_step(Exec& exec, const AdamWState& state, ConstView grad, ConstView grad_scale,
                const AdamWSettings& settings) {
  check_step(state, grad, grad_scale, settings);
  count_step(exec, state, grad);
  if (exec.planning() || state.value.size() == 0) return;
  const AdamWFactors factors(settings);
  if (exec.on_cuda()) return cuda::adamw_step(exec, state, grad, grad_scale, factors);
  cpu::kernels().adamw_step(exec, state, grad, grad_scale, factors);
}

void adamw_steps(Exec& exec, std::span<const AdamWSlot> slots, ConstView grad_scale, const AdamWSettings& settings) {
  std::vector<const AdamWSlot*> left;
  for (const AdamWSlot& slot : slots) {
    check_step(slot.state, slot.grad, grad_scale, settings);
    count_step(exec, slot.state, slot.grad);
    if (slot.state.value.size() > 0) left.push_back(&slot);
  }
  if (exec.planning()) return;
  const AdamWFactors factors(settings);
  if (!exec.on_cuda()) {
    for (const AdamWSlot* slot : left) cpu::kernels().adamw_step(exec, slot->state, slot->grad, grad_scale, factors);
    return;
  }
  while (!left.empty()) {
    std::vector<const AdamWSlot*> together, others;
    for (const AdamWSlot* slot : left) {
      const bool fits = together.size() < cuda::most_together && cuda::steps_alike(*left.front(), *slot);
      (fits ? together : others).push_back(slot);
    }
    cuda::adamw_steps(exec, together, grad_scale, factors);
    left = std::move(others);
  }
}

void adamw_update(Exec& exec, View grad, View m, View v, ConstView grad_scale, const AdamWSettings& settings) {
  constexpr std::string_view op = "adamw_update";
  check_dtype(op, "grad", grad, DType::f32);
  check_activation(op, "m", m);
  check_dtype(op, "v", v, m.dtype());
  for (const ConstView& view : {ConstView(m), ConstView(v)}) check_shape(op, "a moment", view, grad.shape());
  INLAY_ASSERT(grad.contiguous() && m.contiguous() && v.contiguous(), "{}: a strided tensor", op);
  INLAY_ASSERT(settings.step >= 1, "{}: step {}, the first is 1", op, settings.step);
  exec.count_bytes({grad, grad, m, m, v, v});
  if (exec.planning() || grad.size() == 0) return;
  const AdamWFactors factors(settings);
  if (exec.on_cuda()) return cuda::adamw_update(exec, grad, m, v, grad_scale, factors);
  cpu::kernels().adamw_update(exec, grad, m, v, grad_scale, factors);
}

void add_update(Exec& exec, View value, View low, ConstView update, const AdamWSettings& settings) {
  constexpr std::string_view op = "add_update";
  check_activation(op, "value", value);
  check_dtype(op, "update", update, DType::f32);
  check_shape(op, "update", update, value.shape());
  INLAY_ASSERT((value.dtype() == DType::bf16) == static_cast<bool>(low),
               "{}: bf16 weights, and only they, have a low half", op);
  INLAY_ASSERT(value.contiguous() && update.contiguous(), "{}: a strided tensor", op);
  exec.count_bytes({update, value, value, low, low});
  if (exec.planning() || value.size() == 0) return;
  const float decay = AdamWFactors(settings).decay;
  if (exec.on_cuda()) return cuda::add_update(exec, value, low, update, decay);
  cpu::kernels().add_update(exec, value, low, update, decay);
}

namespace {

void check_master(std::string_view op, ConstView value, ConstView low, ConstView master) {
  check_dtype(op, "master", master, DType::f32);
  check_shape(op, "value", value, master.shape());
  check_dtype(op, "value", value, DType::bf16);
  check_shape(op, "low", low, master.shape());
  check_dtype(op, "low", low, DType::i16);
  INLAY_ASSERT(value.contiguous() && low.contiguous() && master.contiguous(), "{}: a strided tensor", op);
}

}  // namespace

void split_master(Exec& exec, View value, View low, ConstView master) {
  check_master("split_master", value, low, master);
  exec.count_bytes({master, value, low});
  if (exec.planning() || master.size() == 0) return;
  if (exec.on_cuda()) return cuda::split_master(exec, value, low, master);
  cpu::kernels().split_master(exec, value, low, master);
}

void join_master(Exec& exec, View master, ConstView value, ConstView low) {
  check_master("join_master", value, low, master);
  exec.count_bytes({master, value, low});
  if (exec.planning() || master.size() == 0) return;
  if (exec.on_cuda()) return cuda::join_master(exec, master, value, low);
  cpu::kernels().join_master(exec, master, value, low);
}

void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x) {
  constexpr std::string_view op = "sum_of_squares";
  check_activation(op, "x", x);
  check_dtype(op, "sums", sums, DType::f64);
  INLAY_ASSERT(x.contiguous(), "{}: x is strided", op);
  INLAY_ASSERT(sums.rank() == 1 && 0 <= slot && slot < sums.dim(0), "{}: slot {} of {}", op, slot, sums.shape().str());
  ScratchScope scope(exec.arena());
  const View scratch = exec.arena().scratch("partial sums of squares", DType::f64, {partial_sum_count});
  exec.count_bytes({x});
  if (exec.planning()) return;
  if (x.size() == 0) return exec.fill_zero(sums.slice(0, slot, slot + 1));
  if (exec.on_cuda()) return cuda::sum_of_squares(exec, sums, slot, x, scratch);
  cpu::kernels().sum_of_squares(exec, sums, slot, x, scratch);
}

void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x) {
  constexpr std::string_view op = "sums_of_squares";
  INLAY_ASSERT(slots.size() == x.size(), "{}: {} tensors for {} slots", op, x.size(), slots.size());
  check_dtype(op, "sums", sums, DType::f64);
  for (std::size_t i = 0; i < x.size(); ++i) {
    check_dtype(op, "x", x[i], DType::f32);
    INLAY_ASSERT(x[i].contiguous(), "{}: x is strided", op);
    INLAY_ASSERT(0 <= slots[i] && slots[i] < sums.dim(0), "{}: slot {} of {}", op, slots[i], sums.shape().str());
  }
  if (exec.on_cuda()) {
    for (const ConstView& view : x) exec.count_bytes({view});
    if (exec.planning()) return;
    for (std::size_t begin = 0; begin < x.size(); begin += cuda::most_together) {
      const std::size_t count = std::min(cuda::most_together, x.size() - begin);
      cuda::sums_of_squares(exec, sums, slots.subspan(begin, count), x.subspan(begin, count));
    }
    return;
  }
  for (std::size_t i = 0; i < x.size(); ++i) sum_of_squares(exec, sums, slots[i], x[i]);
}

void clip_scale(Exec& exec, View norm, View scale, ConstView sums, float max_norm) {
  constexpr std::string_view op = "clip_scale";
  for (const ConstView& view : {ConstView(norm), ConstView(scale)}) {
    check_shape(op, "norm or scale", view, {1});
    check_dtype(op, "norm or scale", view, DType::f32);
  }
  check_dtype(op, "sums", sums, DType::f64);
  INLAY_ASSERT(sums.rank() == 1 && sums.size() > 0 && sums.contiguous(), "{}: sums are {}", op, sums.shape().str());
  if (exec.planning()) return;
  if (exec.on_cuda()) return cuda::clip_scale(exec, norm, scale, sums, max_norm);
  cpu::kernels().clip_scale(exec, norm, scale, sums, max_norm);
}

}  // namespace inlay::ops
