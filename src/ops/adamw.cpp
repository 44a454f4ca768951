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
  const AdamWSlot slot{state, grad};
  adamw_steps(exec, {&slot, 1}, grad_scale, settings);
}

namespace {

// Calls body with those that are alike, at most so many at once, each in the order in which they came.
template <class T, class Alike, class Body>
void for_each_alike(std::vector<const T*> left, std::size_t most, const Alike& alike, const Body& body) {
  while (!left.empty()) {
    std::vector<const T*> together, others;
    for (const T* one : left) {
      (together.size() < most && alike(*left.front(), *one) ? together : others).push_back(one);
    }
    body(std::span<const T* const>(together));
    left = std::move(others);
  }
}

}  // namespace

void adamw_steps(Exec& exec, std::span<const AdamWSlot> slots, ConstView grad_scale, const AdamWSettings& settings) {
  std::vector<const AdamWSlot*> left;
  for (const AdamWSlot& slot : slots) {
    check_step(slot.state, slot.grad, grad_scale, settings);
    count_step(exec, slot.state, slot.grad);
    if (slot.state.value.size() > 0) left.push_back(&slot);
  }
  if (exec.planning()) return;
  const AdamWFactors factors(settings);
  if (exec.on_cuda()) {
    return for_each_alike(std::move(left), cuda::most_steps, cuda::steps_alike,
                          [&](auto together) { cuda::adamw_steps(exec, together, grad_scale, factors); });
  }
  for (const AdamWSlot* slot : left) {
    AdamWFactors mine = factors;
    if (!slot->decays) mine.decay = 1;
    cpu::kernels().adamw_step(exec, slot->state, slot->grad, grad_scale, mine);
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

void sums_of_squares(Exec& exec, View sums, std::span<const std::int64_t> slots, std::span<const ConstView> x) {
  constexpr std::string_view op = "sums_of_squares";
  INLAY_ASSERT(slots.size() == x.size(), "{}: {} tensors for {} slots", op, x.size(), slots.size());
  check_dtype(op, "sums", sums, DType::f64);
  INLAY_ASSERT(sums.rank() == 1, "{}: sums are {}", op, sums.shape().str());
  std::vector<cuda::SquaredTensor> tensors;
  std::int64_t partial = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    check_activation(op, "x", x[i]);
    INLAY_ASSERT(x[i].contiguous(), "{}: x is strided", op);
    INLAY_ASSERT(0 <= slots[i] && slots[i] < sums.dim(0), "{}: slot {} of {}", op, slots[i], sums.shape().str());
    exec.count_bytes({x[i]});
    tensors.push_back({x[i], slots[i]});
    partial += partial_sums(x[i].size());
  }
  if (x.empty()) return;
  // Launches take turns in it.
  constexpr auto most = static_cast<std::int64_t>(cuda::most_sums) * partial_sum_count;
  const std::int64_t room = exec.on_cuda() ? std::min(partial, most) : partial_sum_count;
  ScratchScope scope(exec.arena());
  const View scratch = exec.arena().scratch("partial sums of squares", DType::f64, {room});
  if (exec.planning()) return;
  if (!exec.on_cuda()) {
    for (const auto& [data, slot] : tensors) cpu::kernels().sum_of_squares(exec, sums, slot, data, scratch);
    return;
  }
  std::vector<const cuda::SquaredTensor*> all;
  for (const cuda::SquaredTensor& tensor : tensors) all.push_back(&tensor);
  for_each_alike(std::move(all), cuda::most_sums, cuda::sums_alike,
                 [&](auto together) { cuda::sums_of_squares(exec, sums, together, scratch); });
}

void sum_of_squares(Exec& exec, View sums, std::int64_t slot, ConstView x) {
  sums_of_squares(exec, sums, {&slot, 1}, {&x, 1});
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
