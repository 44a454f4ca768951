#include "ops/preference.h"

#include "ops/kernels.h"

namespace inlay::ops {

void preference(Exec& exec, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec) {
  constexpr std::string_view op = "preference";
  const std::int64_t tokens = inputs.losses.dim(0), sequences = inputs.roles.dim(0);
  check_dtype(op, "losses", inputs.losses, DType::f32);
  check_shape(op, "targets", inputs.targets, {tokens});
  check_dtype(op, "targets", inputs.targets, DType::i32);
  check_shape(op, "cu_seqlens", inputs.cu_seqlens, {sequences + 1});
  check_dtype(op, "roles", inputs.roles, DType::i32);
  check_shape(op, "factors", factors, {tokens});
  check_dtype(op, "factors", factors, DType::f32);
  check_shape(op, "sums", sums, {preference_sums});
  check_dtype(op, "sums", sums, DType::f32);
  if (!inputs.weights.absent()) check_shape(op, "weights", inputs.weights, {tokens});
  if (!inputs.reference.absent()) check_shape(op, "reference", inputs.reference, {sequences});
  INLAY_ASSERT(!inputs.reference.absent() || !spec.needs_reference(), "preference: no reference to compare with");
  exec.count_bytes({inputs.losses, factors});
  const ScratchScope scope(exec.arena());
  // By the tokens, of which every sequence has one at least, so that a plan is right for any lengths.
  const View table = exec.arena().scratch("sums of sequences", DType::f64,
                                          {tokens, static_cast<std::int64_t>(sizeof(SequenceSum) / 8)});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::preference(exec, factors, sums, inputs, spec, table)
                 : cpu::kernels().preference(exec, factors, sums, inputs, spec, table);
}

void mean_loss(Exec& exec, View mean, ConstView losses, ConstView rows) {
  constexpr std::string_view op = "mean_loss";
  check_dtype(op, "mean", mean, DType::f32);
  check_dtype(op, "losses", losses, DType::f32);
  check_dtype(op, "rows", rows, DType::i32);
  exec.count_bytes({losses});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::mean_loss(exec, mean, losses, rows) : cpu::kernels().mean_loss(exec, mean, losses, rows);
}

}  // namespace inlay::ops
